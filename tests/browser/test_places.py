"""Links, Back and Forward, drafts, and a server that ends while tabs are open: nothing is lost on the way."""

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, Chat, tab, verbatim
from tests.browser.server import RunningApp

pytestmark = pytest.mark.browser


def test_back_and_forward_go_between_conversations(chat: Chat) -> None:
    first = chat.start("one")
    second = chat.start("two")
    assert first != second
    chat.page.go_back()
    expect(chat.rows.last).to_contain_text("one")
    assert chat.id == first
    chat.page.go_back()
    expect(chat.page).to_have_url("about:blank")
    chat.page.go_forward()
    chat.ready()
    expect(chat.rows.last).to_contain_text("one")
    chat.page.go_forward()
    expect(chat.rows.last).to_contain_text("two")
    assert chat.id == second


def test_a_link_opens_in_a_tab_of_its_own(chromium: Browser, app: RunningApp) -> None:
    context = chromium.new_context(**DESKTOP)
    with tab(chromium, app.url, context) as one:
        first = one.start("one")
        one.start("two")
        with tab(chromium, f"{app.url}/?c={first}", context) as other:
            expect(other.rows.last).to_contain_text("one")
            other.ask(verbatim("more"))
            assert other.id == first
        expect(one.rows.last).to_contain_text("two")
        one.ask(verbatim("and on"))
        assert one.texts()[1::2] == ["two", "and on"]
    context.close()


@pytest.mark.parametrize("link", ["nothing", "x" * 500, "<script>alert(1)</script>", "%00"])
def test_a_link_to_nothing_is_a_new_chat_with_a_word_about_it(chat: Chat, app: RunningApp, link: str) -> None:
    chat.page.goto(f"{app.url}/?c={link}")
    chat.ready()
    expect(chat.page.locator("#greeting")).to_be_visible()
    if len(link) < 64:
        expect(chat.problem).to_contain_text("not here")
    expect(chat.page).to_have_url(re.compile(r"/$"))
    chat.ask(verbatim("works"))
    assert chat.problem.count() == 0


def test_what_is_typed_while_an_answer_streams_stays_and_a_draft_survives_reload_and_switch(chat: Chat) -> None:
    first = chat.start("one")
    chat.box.fill("a draft for one")
    chat.new()
    expect(chat.box).to_have_value("")
    chat.send("/say 200 tokens at 40 tok/s")
    chat.wait_phase("answering")
    chat.box.fill("the next question")
    chat.box.press("Enter")
    expect(chat.box).to_have_value("the next question")
    chat.reload()
    expect(chat.box).to_have_value("the next question")
    second = chat.id
    chat.page.locator(f"#list .entry[data-id='{first}'] a").click()
    expect(chat.rows.last).to_contain_text("one")
    expect(chat.box).to_have_value("a draft for one")
    chat.page.locator(f"#list .entry[data-id='{second}'] a").click()
    expect(chat.box).to_have_value("the next question")
    chat.wait_idle()
    expect(chat.page.locator("#history .figures").last).to_contain_text("200 tokens")
    chat.box.fill("")
    chat.ask(verbatim("sent"))
    chat.reload()
    expect(chat.rows).to_have_count(4)
    expect(chat.box).to_have_value("")


def test_another_conversation_and_back_while_one_streams(chat: Chat) -> None:
    """The live view follows the reader; the answer that is not looked at goes on."""
    first = chat.start("one")
    chat.new()
    chat.send("/say 150 tokens at 30 tok/s")
    chat.wait_phase("answering")
    second = chat.id
    chat.page.locator(f"#list .entry[data-id='{first}'] a").click()
    expect(chat.rows.last).to_contain_text("one")
    chat.wait_idle()
    expect(chat.entry("/say").locator(".entry-running")).to_be_visible()
    chat.page.locator(f"#list .entry[data-id='{second}'] a").click()
    chat.wait_phase("answering")
    chat.wait_idle()
    expect(chat.page.locator("#history .figures").last).to_contain_text("150 tokens")
    assert len(chat.texts()) == 2


def test_keys_lead_through_the_conversations(chat: Chat) -> None:
    first = chat.start("one")
    second = chat.start("two")
    expect(chat.titles).to_have_count(2)  # the list is told a moment later, and the keys go by it
    chat.box.press("Alt+ArrowDown")
    expect(chat.rows.last).to_contain_text("one")
    assert chat.id == first
    chat.box.press("Alt+ArrowUp")
    expect(chat.rows.last).to_contain_text("two")
    assert chat.id == second
    chat.box.press("Control+K")
    expect(chat.page.locator("#side-search")).to_be_focused()
    chat.page.keyboard.type("one")
    expect(chat.titles).to_have_count(1)
    chat.page.keyboard.press("ArrowDown")
    chat.page.keyboard.press("Enter")
    expect(chat.rows.last).to_contain_text("one")
    chat.box.press("Control+Shift+S")
    expect(chat.page.locator("#side")).not_to_be_visible()
    chat.box.press("Control+Shift+O")
    expect(chat.page.locator("#greeting")).to_be_visible()
    expect(chat.box).to_be_focused()
