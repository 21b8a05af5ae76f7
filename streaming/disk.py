"""Room on a disk: asked for before something large is written, and explained when it runs out all the same.

Knows nothing of models. Sizes are bytes; people read them in MB and GB of 1000.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streaming.errors import NoDiskSpace

_CANNOT_WRITE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR}
)


def size_text(size_bytes: int) -> str:
    """A size for a person, as in "538 MB" or "3.1 GB"."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def require_space(folder: Path, needed: int) -> None:
    """Raise NoDiskSpace unless the disk of `folder` (which need not exist yet) has `needed` bytes free."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise NoDiskSpace(
            f"The model needs {size_text(needed)} on the disk of {folder}, and {size_text(free)} are free. "
            "Make room there, or set another folder (--cache-dir for the starter model, HF_HOME for the Hub)."
        )


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the system's refusals to write into NoDiskSpace; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise NoDiskSpace(
            f"The model could not be written to {folder} ({error.strerror}). Make room there or allow writing, "
            "or set another folder (--cache-dir for the starter model, HF_HOME for the Hub)."
        ) from error
