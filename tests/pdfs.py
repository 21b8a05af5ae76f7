"""PDF files of a few lines, made for tests: with text, encrypted, scanned, and hostile."""

from io import BytesIO

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def pdf(*pages: str, password: str | None = None, algorithm: str | None = None) -> bytes:
    """A file that shows each text on a page of its own; an empty one shows nothing."""
    writer = PdfWriter()
    for text in pages:
        lines = "".join(f"({line}) Tj 0 -14 Td " for line in text.split("\n")) if text else ""
        add_page(writer, f"BT /F1 12 Tf 72 720 Td {lines}ET".encode("latin-1"))
    if password is not None:
        writer.encrypt(password, algorithm=algorithm)
    return written(writer)


def pdf_bomb(unpacked_bytes: int) -> bytes:
    """A small file with one page whose drawing unpacks to very much."""
    writer = PdfWriter()
    add_page(writer, b"BT /F1 12 Tf (x) Tj ET\n" + b" " * unpacked_bytes, packed=True)
    return written(writer)


def add_page(writer: PdfWriter, drawing: bytes, *, packed: bool = False) -> None:
    page = writer.add_blank_page(612, 792)
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(drawing)
    page[NameObject("/Contents")] = writer._add_object(stream.flate_encode() if packed else stream)


def written(writer: PdfWriter) -> bytes:
    out = BytesIO()
    writer.write(out)
    return out.getvalue()
