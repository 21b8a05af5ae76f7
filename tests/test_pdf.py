"""Text out of PDFs, real ones and hostile ones: each bad file is refused in words, at a bounded price."""

import json
import subprocess
import sys

import pytest
from pypdf import PdfWriter

from streaming import pdf as reader
from streaming.errors import InvalidRequest
from streaming.pdf import MOST_PAGES, extract, read_pdf
from tests.pdfs import add_page, pdf, pdf_bomb, written

LONGEST = 100_000


def test_the_text_of_all_pages_in_their_order() -> None:
    assert read_pdf(pdf("First page\nwith two lines", "Second page"), LONGEST) == (
        "First page\nwith two lines\n\nSecond page",
        2,
    )


def test_reading_ends_soon_after_the_most_that_is_wanted() -> None:
    text, pages = read_pdf(pdf(*["0123456789"] * 50), 100)
    assert 100 < len(text) < 140
    assert pages == 50


def test_a_file_with_a_password_is_said_to_have_one() -> None:
    with pytest.raises(InvalidRequest, match="password"):
        read_pdf(pdf("secret", password="open sesame", algorithm="RC4-128"), LONGEST)


def test_a_file_that_anybody_may_read_but_not_print_is_read() -> None:
    assert read_pdf(pdf("not to be printed", password="", algorithm="RC4-128"), LONGEST)[0] == "not to be printed"


def test_a_cipher_that_takes_a_library_which_is_not_here_is_called_protected() -> None:
    """Without that library even the empty password of AES cannot be tried."""
    aes = pdf("secret", password="", algorithm="RC4-128").replace(b"/V 2", b"/V 5").replace(b"/R 3", b"/R 5")
    assert extract(aes, LONGEST) == {"reason": "encrypted"}


def test_scans_hold_no_text() -> None:
    with pytest.raises(InvalidRequest, match="only images"):
        read_pdf(pdf("", ""), LONGEST)


@pytest.mark.parametrize(
    "data",
    [
        b"%PDF-1.7\n",
        b"%PDF-1.7\n" + bytes(range(256)) * 20,
        pdf("cut off")[:300],
        b"no pdf at all",
        written(PdfWriter()),
    ],
    ids=["header only", "garbage", "cut off", "text", "no pages"],
)
def test_a_damaged_file_is_said_to_be_damaged(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="damaged"):
        read_pdf(data, LONGEST)


def test_a_book_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=f"more than {MOST_PAGES} pages"):
        read_pdf(pdf(*["page"] * (MOST_PAGES + 1)), LONGEST)


def test_a_bomb_is_refused() -> None:
    """200 MB of drawing in 200 kB of file."""
    bomb = pdf_bomb(200_000_000)
    assert len(bomb) < 300_000
    with pytest.raises(InvalidRequest, match="too much time or memory"):
        read_pdf(bomb, LONGEST)


def test_a_child_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PATIENCE_S", 0.001)  # Python alone takes longer to start
    with pytest.raises(InvalidRequest, match="too much time"):
        read_pdf(pdf("Slow"), LONGEST)


@pytest.mark.parametrize("greed", ["while True: pass", "b'x' * 2_000_000_000"], ids=["time", "memory"])
def test_a_child_that_takes_too_much_is_ended(greed: str) -> None:
    code = f"import streaming.pdf as pdf; pdf.CPU_SECONDS = 1; pdf._limit_this_process()\n{greed}"
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode


def test_a_child_that_ended_without_an_answer_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, -9, b""))
    with pytest.raises(InvalidRequest, match="too much time"):
        read_pdf(pdf("Killed"), LONGEST)


def test_the_child_takes_no_secrets_along(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        seen.update(options)
        return subprocess.CompletedProcess(command, 0, json.dumps({"text": "x", "pages": 1}).encode())

    monkeypatch.setenv("STREAMING_API_KEY", "secret")
    monkeypatch.setattr(subprocess, "run", run)
    read_pdf(b"%PDF-", LONGEST)
    assert "STREAMING_API_KEY" not in seen["env"]  # type: ignore[operator]


def test_half_characters_and_controls_do_not_come_out() -> None:
    writer = PdfWriter()
    add_page(writer, rb"BT /F1 12 Tf 72 720 Td (a\001b\033c) Tj ET")
    text = extract(written(writer), LONGEST)["text"]
    assert text.encode()
    assert not [character for character in text if character < " "]
