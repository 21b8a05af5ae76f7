"""Files that go along with a message: by button, by drop, as chips, and in the count of what the model reads."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chat import Chat, verbatim
from tests.pdfs import pdf

pytestmark = pytest.mark.browser

DROP = """([name, text]) => {
    const given = new DataTransfer();
    given.items.add(new File([text], name));
    const event = kind => new DragEvent(kind, {dataTransfer: given, bubbles: true, cancelable: true});
    document.body.dispatchEvent(event('dragenter'));
    window.overlay = document.body.classList.contains('dropping');
    document.body.dispatchEvent(event('drop'));
}"""


def attach(chat: Chat, *files: Path) -> None:
    with chat.page.expect_file_chooser() as chooser:
        chat.page.locator("#attach").click()
    chooser.value.set_files(files)


def test_a_file_goes_along_and_is_read_by_the_model(chat: Chat, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("word " * 500)
    attach(chat, notes)
    chip = chat.page.locator("#files .chip")
    expect(chip).to_have_text("notes.md 2,500 characters")
    chat.send("/say 60 tokens at 30 tok/s")
    chat.wait_phase("answering")
    expect(chat.page.locator("#live .user-row .chip")).to_contain_text("notes.md")
    expect(chip).to_have_count(0)
    chat.wait_idle()
    expect(chat.rows.first.locator(".chip")).to_have_text("notes.md 2,500 characters")
    expect(chat.rows.first.locator(".md")).to_have_text("/say 60 tokens at 30 tok/s")
    tokens = chat.page.locator("#status").inner_text().split(" of ")[0].split()[-1]
    assert int(tokens.replace(",", "")) > 560
    chat.reload()
    expect(chat.rows.first.locator(".chip")).to_have_text("notes.md 2,500 characters")


def test_chips_can_be_removed_and_stay_with_their_conversation(chat: Chat, tmp_path: Path) -> None:
    first = chat.start("one")
    files = [tmp_path / name for name in ("<b>a.txt", "b.txt")]
    for file in files:
        file.write_text("text")
    attach(chat, *files)
    chips = chat.page.locator("#files .chip")
    expect(chips).to_have_count(2)
    chat.page.get_by_role("button", name="Remove b.txt").click()
    expect(chips).to_have_count(1)
    chat.new()
    expect(chips).to_have_count(0)
    chat.page.locator(f"#list .entry[data-id='{first}'] a").click()
    expect(chips).to_have_count(1)
    chat.ask(verbatim("two"))
    expect(chat.rows.nth(2).locator(".chip")).to_have_count(1)
    chat.tool(chat.rows.last, "undo")
    expect(chips).to_have_count(1)


def test_a_file_is_dropped_onto_the_page_and_a_bad_one_is_named(chat: Chat) -> None:
    chat.box.fill("the text in the box")
    chat.page.evaluate(DROP, ["dropped.txt", "some text"])
    expect(chat.page.locator("#files .chip")).to_contain_text("dropped.txt")
    assert chat.page.evaluate("window.overlay")
    expect(chat.page.locator(".dropping")).to_have_count(0)
    chat.page.evaluate(DROP, ["picture.png", "\x89PNG\r\n\x1a\n\0\0"])
    expect(chat.problem).to_contain_text("picture.png")
    expect(chat.page.locator("#files .chip")).to_have_count(1)
    expect(chat.box).to_have_value("the text in the box")


def test_a_pdf_is_read_with_its_pages(chat: Chat, tmp_path: Path) -> None:
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(pdf("first page", "second page"))
    attach(chat, paper)
    expect(chat.page.locator("#files .chip")).to_have_text("paper.pdf 2 pages")
