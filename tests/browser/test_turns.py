"""What can be done to a message: versions, editing, continuing, deleting, branching off, copying."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, Chat, tab, verbatim
from tests.browser.server import RunningApp

pytestmark = pytest.mark.browser


def test_the_arrows_walk_through_the_versions_of_a_question_with_what_followed_each(chat: Chat) -> None:
    chat.start("first", "second")
    chat.tool(chat.rows.first, "edit")
    chat.page.locator(".edit-form textarea").fill(verbatim("another first"))
    chat.page.locator(".edit-form textarea").press("Enter")
    expect(chat.rows).to_have_count(2)
    chat.wait_idle()
    arrows = chat.rows.first.locator(".versions")
    expect(arrows).to_contain_text("2/2")
    expect(arrows.get_by_role("button", name="Later version")).to_be_disabled()
    arrows.get_by_role("button", name="Earlier version").click()
    expect(chat.rows).to_have_count(4)
    assert chat.texts()[1::2] == ["first", "second"]
    expect(arrows).to_contain_text("1/2")
    chat.reload()
    expect(chat.rows).to_have_count(4)
    arrows.get_by_role("button", name="Later version").click()
    expect(chat.rows).to_have_count(2)
    assert chat.texts()[1] == "another first"


def test_a_second_try_is_a_version_beside_the_first(chat: Chat) -> None:
    chat.start("answer")
    chat.tool(chat.rows.last, "retry")
    expect(chat.rows.last.locator(".versions")).to_contain_text("2/2")
    chat.rows.last.get_by_role("button", name="Earlier version").click()
    expect(chat.rows.last.locator(".versions")).to_contain_text("1/2")


def test_an_answer_is_edited_in_place_and_the_first_one_is_kept(chat: Chat) -> None:
    chat.start("the sky is green")
    chat.more(chat.rows.last, "Edit")
    area = chat.page.get_by_role("textbox", name="Edit the answer")
    expect(area).to_have_value("the sky is green")
    area.press("Enter")  # a line in it, and not its end
    area.fill("the sky is **blue**")
    chat.page.locator(".edit-form").get_by_role("button", name="Save").click()
    expect(chat.rows.last.locator("strong")).to_have_text("blue")
    expect(chat.rows.last.locator(".versions")).to_contain_text("2/2")
    expect(chat.rows.last.locator(".figures")).to_have_count(0)
    chat.rows.last.get_by_role("button", name="Earlier version").click()
    expect(chat.rows.last).to_contain_text("the sky is green")


def test_a_stopped_answer_goes_on_after_a_reload_until_it_is_whole(chat: Chat) -> None:
    text = " ".join(f"word{number}" for number in range(120))
    chat.start()
    chat.send(verbatim(text, pace=40))
    expect(chat.live).to_contain_text("word5")
    chat.stop()
    chat.wait_idle()
    chat.reload()
    expect(chat.rows.last).to_contain_text("word5")
    expect(chat.rows.last).not_to_contain_text("word119")
    chat.page.get_by_role("button", name="Continue").click()
    expect(chat.rows.last).to_contain_text("word119")
    chat.wait_idle()
    expect(chat.rows).to_have_count(2)
    assert chat.texts()[-1] == text
    expect(chat.notes).to_have_count(0)
    expect(chat.page.get_by_role("button", name="Continue")).to_have_count(0)


def test_a_deleted_message_is_gone_and_what_followed_stays(chat: Chat) -> None:
    chat.start("first", "second")
    chat.more(chat.rows.nth(1), "Delete message")
    expect(chat.rows).to_have_count(3)
    assert chat.texts()[2] == "second"
    chat.reload()
    expect(chat.rows).to_have_count(3)
    chat.ask(verbatim("third"))
    assert chat.texts()[-1] == "third"


def test_a_branch_is_a_conversation_of_its_own(chat: Chat) -> None:
    first = chat.start("first", "second")
    chat.more(chat.rows.nth(1), "Branch off here")
    expect(chat.rows).to_have_count(2)
    expect(chat.titles).to_have_count(2)
    assert chat.id not in ("", first)
    chat.ask(verbatim("elsewhere"))
    chat.page.go_back()
    expect(chat.rows.last).to_contain_text("second")
    assert chat.id == first
    assert chat.texts()[1::2] == ["first", "second"]


def test_copying_gives_the_markdown_as_written(chromium: Browser, app: RunningApp) -> None:
    context = chromium.new_context(**DESKTOP, permissions=["clipboard-read", "clipboard-write"])
    with tab(chromium, app.url, context) as chat:
        markdown = "- **bold**\n    - nested `code`"
        chat.start(markdown, "the last one")
        clipboard = "navigator.clipboard.readText()"
        chat.tool(chat.rows.nth(1), "copy")
        expect(chat.rows.nth(1).locator(".tool-copy.done")).to_be_visible()
        assert chat.page.evaluate(clipboard) == markdown
        chat.box.press("Control+Shift+C")
        expect(chat.page.locator("#toast")).to_contain_text("Copied")
        assert chat.page.evaluate(clipboard) == "the last one"
    context.close()


def test_the_menu_goes_by_keys(chat: Chat) -> None:
    chat.start("first")
    more = chat.rows.last.locator(".tool-more")
    more.focus()
    more.press("Enter")
    expect(chat.page.get_by_role("menuitem", name="Edit")).to_be_focused()
    chat.page.keyboard.press("ArrowUp")
    expect(chat.page.get_by_role("menuitem", name="Delete message")).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("menu")).to_have_count(0)
    expect(more).to_be_focused()
