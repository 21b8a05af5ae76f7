"""Files that go along with a message: read into text once, when they are given; the file itself is never kept.

Names and texts are hostile: a name is cleaned for people's eyes, a text cannot get out of its frame. Knows no page and
no conversation. `read_attachment` blocks (a PDF takes a process of its own): for worker threads.
"""

import codecs
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from mimetypes import MimeTypes
from pathlib import PurePosixPath

from streaming.errors import InvalidRequest
from streaming.messages import is_unicode
from streaming.pdf import read_pdf

MOST_BYTES = 10_000_000
MOST_CHARACTERS = 200_000  # some 50,000 tokens: more than most contexts hold
MOST_FILES = 5
LONGEST_NAME = 100
PDF = "application/pdf"
_BYTE_ORDER_MARKS = (  # UTF-32's begins with UTF-16's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")  # but tab, line and page breaks, colours of a log
_MOST_FOREIGN = 0.3  # of a Windows-1252 text: with more of its letters beyond ASCII, it is another code page's
_KNOWN_BINARIES = (
    (b"PK\x03\x04", "a Word, Excel or PowerPoint document or an archive. Save it as PDF or as text"),
    (b"\xd0\xcf\x11\xe0", "an old Word, Excel or PowerPoint document. Save it as PDF or as text"),
    (b"\x89PNG", "an image, and this app reads only text"),
    (b"\xff\xd8\xff", "an image, and this app reads only text"),
    (b"GIF8", "an image, and this app reads only text"),
    (b"{\\rtf", "a rich text document. Save it as PDF or as plain text"),
)
_TEXTUAL = re.compile(r"text/.+|application/(json|xml|javascript|x-sh|x-tex|x-latex|yaml|toml|sql)|.*\+(xml|json)")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file's text. `pages` are those of a PDF."""

    name: str
    media_type: str
    text: str
    pages: int = 0

    def __post_init__(self) -> None:
        for value in (self.name, self.media_type, self.text):
            if not isinstance(value, str) or not is_unicode(value):
                raise InvalidRequest("An attachment's name, kind and content must be texts.", "attachments")
        if not isinstance(self.pages, int) or isinstance(self.pages, bool) or self.pages < 0:
            raise InvalidRequest("The pages of an attachment are a whole number.", "attachments")
        object.__setattr__(self, "name", clean_name(self.name))


def read_attachment(name: str, data: bytes) -> Attachment:
    """The text of a file. Raises InvalidRequest that says why it has none to give, in words with its name."""
    name = clean_name(name)
    if not data:
        raise InvalidRequest(f"{name} is empty.", "attachments")
    if len(data) > MOST_BYTES:
        raise InvalidRequest(
            f"{name} has {len(data) / 1e6:,.1f} MB: a file may have {MOST_BYTES // 1_000_000} MB.", "attachments"
        )
    try:
        if data.startswith(b"%PDF-") or name.lower().endswith(".pdf"):
            text, pages = read_pdf(data, MOST_CHARACTERS)
            attachment = Attachment(name, PDF, text, pages)
        else:
            attachment = Attachment(name, _media_type(name), _decode(data))
    except InvalidRequest as error:
        raise InvalidRequest(f"{name} {error}.", "attachments") from error
    if not attachment.text.strip():
        raise InvalidRequest(f"{name} is empty: it holds nothing but white space.", "attachments")
    if len(attachment.text) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"{name} has more text than a model can read at once: a file may have {MOST_CHARACTERS:,} characters. "
            "Take out the part that matters.",
            "attachments",
        )
    return attachment


def check_attachments(attachments: Sequence[Attachment]) -> None:
    """Raise InvalidRequest if these are more than may go along with one message."""
    if len(attachments) > MOST_FILES:
        raise InvalidRequest(
            f"These are {len(attachments)} files: {MOST_FILES} can go along with a message.", "attachments"
        )


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """What the model reads: each file in a frame under its name, then the message."""
    return "\n\n".join([*(framed(attachment) for attachment in attachments), text])


def framed(attachment: Attachment) -> str:
    """A file as Markdown has it: its name, and its text in a fence longer than any within, so that nothing in it
    can end the fence early and speak as somebody else."""
    within = re.findall("`+", attachment.text)
    fence = "`" * max([3, *(len(run) + 1 for run in within)])
    end = "" if attachment.text.endswith("\n") else "\n"
    return f"File: {attachment.name}\n{fence}\n{attachment.text}{end}{fence}"


def clean_name(name: str) -> str:
    """The last part of a path, in one line, without what cannot be seen or turns the reading direction."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(" " if character.isspace() else character for character in last if not _is_hidden(character))
    line = " ".join(shown.split()).strip("` ")
    if len(line) > LONGEST_NAME:
        suffix = PurePosixPath(line).suffix[:12]
        line = f"{line[: LONGEST_NAME - len(suffix) - 1]}…{suffix}"
    return line or "file"


def _is_hidden(character: str) -> bool:
    """Control and format characters, half characters, and what no font has; but not a line break, which parts words."""
    return unicodedata.category(character).startswith("C") and not character.isspace()


def _media_type(name: str) -> str:
    """By the name, as far as it is one of text: the content has shown that it is."""
    known = MimeTypes()  # Python's own list, not the machine's
    known.add_type("text/markdown", ".md")
    guess, packed = known.guess_type(name)
    return guess if guess and not packed and _TEXTUAL.fullmatch(guess) else "text/plain"


def _decode(data: bytes) -> str:
    """The text, its line ends as everywhere. Raises InvalidRequest whose message goes on after the file's name."""
    encoding, start = next(
        ((encoding, len(mark)) for mark, encoding in _BYTE_ORDER_MARKS if data.startswith(mark)), ("", 0)
    )
    if not encoding:
        for signature, what in _KNOWN_BINARIES:
            if data.startswith(signature):
                raise InvalidRequest(f"is {what}")
    text = _strictly(data[start:], encoding or "utf-8")
    if text is None and not encoding:
        text = _western(data)
    if text is None or len(_CONTROLS.findall(text)) > len(text) / 1000 or "\0" in text:
        raise InvalidRequest("is not a text: only text files and PDFs can be read. If it is one, save it as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _western(data: bytes) -> str | None:
    """What older programs in western Europe and America wrote, as far as it looks like it."""
    text = _strictly(data, "cp1252")
    if text is None or _CONTROLS.search(text):
        return None
    foreign = sum(character > "\x7f" for character in text)
    return text if foreign <= _MOST_FOREIGN * len(text) else None


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None
