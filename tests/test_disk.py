"""Room on a disk: asked for before, explained after."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from streaming import disk
from streaming.errors import NoDiskSpace


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 MB"), (92_871_040, "93 MB"), (999_000_000, "999 MB"), (3_140_000_000, "3.1 GB")]
)
def test_sizes_are_for_people(size_bytes: int, text: str) -> None:
    assert disk.size_text(size_bytes) == text


def test_asks_the_disk_that_a_folder_will_be_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: asked.append(place) or SimpleNamespace(free=10**9))
    folder = tmp_path / "not" / "there" / "yet"
    disk.require_space(folder, 10**9)
    assert asked == [tmp_path]
    with pytest.raises(NoDiskSpace, match=r"needs 1\.5 GB on the disk of .*yet, and 1\.0 GB are free.*HF_HOME"):
        disk.require_space(folder, 1_500_000_000)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_is_explained_with_the_systems_error_as_cause(tmp_path: Path, code: int) -> None:
    with (
        pytest.raises(NoDiskSpace, match=r"could not be written to .*Make room there") as raised,
        disk.explained(tmp_path),
    ):
        raise OSError(code, "the system's words")
    assert isinstance(raised.value.__cause__, OSError)
    assert "the system's words" in str(raised.value)


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), disk.explained(tmp_path):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
