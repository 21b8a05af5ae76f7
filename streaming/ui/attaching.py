"""Files into a visitor's page: what goes along with the next message.

A file is read and deleted at once, and its text is kept by the visitor's own tab until it is sent: nothing of one
visitor ever lies where another could ask for it.
"""

import asyncio
from pathlib import Path
from typing import Any

from streaming.attachments import (
    MOST_CHARACTERS,
    MOST_FILES,
    Attachment,
    check_attachments,
    read_attachment,
)
from streaming.errors import InvalidRequest, StreamingError
from streaming.ui import view

File = dict[str, Any]  # an attachment, as the page's script holds it


def held(files: Any) -> tuple[Attachment, ...]:
    """What a tab holds for its next message. It comes from a browser, so it is checked as if it were new."""
    given = files if isinstance(files, list) else []
    check_attachments(given)
    attachments = tuple(_held(file) for file in given)
    if any(len(attachment.text) > MOST_CHARACTERS for attachment in attachments):
        raise InvalidRequest(f"An attached file may have {MOST_CHARACTERS:,} characters.", "attachments")
    return attachments


def hold(attachments: tuple[Attachment, ...]) -> list[File]:
    """The other way round."""
    return [
        {"name": one.name, "media_type": one.media_type, "text": one.text, "pages": one.pages} for one in attachments
    ]


async def attach(paths: Any, files: Any) -> tuple[str, list[File]]:
    """Uploaded files, added to those that the tab holds already; those that cannot be read are named."""
    kept, refusals = files if isinstance(files, list) else [], []
    for path in paths or []:
        try:
            attachment = await asyncio.to_thread(_read, Path(path))
            if len(kept) == MOST_FILES:
                raise InvalidRequest(f"{attachment.name} was left out: {MOST_FILES} files can go along.")
            kept = [*kept, *hold((attachment,))]
        except StreamingError as error:
            refusals.append(str(error))
    return view.problem(" ".join(refusals)), kept


def _read(path: Path) -> Attachment:
    """What is in an uploaded file, which is then deleted."""
    try:
        return read_attachment(path.name, path.read_bytes())
    finally:
        path.unlink(missing_ok=True)


def _held(file: Any) -> Attachment:
    given = file if isinstance(file, dict) else {}
    name, media_type, text = (given.get(field) for field in ("name", "media_type", "text"))
    return Attachment(name, media_type, text, given.get("pages", 0))  # type: ignore[arg-type]  # it checks them
