"""The list at the side: what is in it, and that a conversation is found, named, put away and brought back."""

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, PHONE, Chat, tab, verbatim
from tests.browser.server import RunningApp

pytestmark = pytest.mark.browser


def start(chat: Chat, title: str, text: str) -> str:
    """A conversation of this title with this answer."""
    conversation = chat.start(text)
    chat.entry_menu(text, "Rename")
    chat.page.locator(".entry-name").fill(title)
    chat.page.locator(".entry-name").press("Enter")
    expect(chat.entry(title)).to_be_visible()
    return conversation


def test_conversations_are_listed_newest_first_and_a_click_opens_one(chat: Chat) -> None:
    expect(chat.page.locator("#list")).to_contain_text("Your conversations will be here")
    start(chat, "Bread", "flour and water")
    start(chat, "Paris", "two days")
    expect(chat.titles).to_have_text(["Paris", "Bread"])
    expect(chat.page.locator("#list h2")).to_have_text(["Today"])
    expect(chat.entry("Paris").locator("a")).to_have_attribute("aria-current", "page")
    chat.entry("Bread").click()
    expect(chat.rows.last).to_contain_text("flour and water")
    expect(chat.entry("Bread").locator("a")).to_have_attribute("aria-current", "page")
    expect(chat.page).to_have_title("Bread · Streaming")
    chat.ask(verbatim("and salt"))
    expect(chat.titles).to_have_text(["Bread", "Paris"])


def test_a_rename_can_be_taken_back_and_survives_a_reload(chat: Chat) -> None:
    start(chat, "Bread", "flour and water")
    chat.entry("Bread").locator("a").dblclick()
    chat.page.locator(".entry-name").fill("Something else")
    chat.page.locator(".entry-name").press("Escape")
    expect(chat.titles).to_have_text(["Bread"])
    chat.entry_menu("Bread", "Rename")
    chat.page.locator(".entry-name").fill("<b>Rye</b>")
    chat.box.click()  # leaving the field keeps it
    expect(chat.titles).to_have_text(["<b>Rye</b>"])
    chat.reload()
    expect(chat.titles).to_have_text(["<b>Rye</b>"])


def test_a_menu_stays_of_use_when_the_list_changes_under_it(chromium: Browser, app: RunningApp) -> None:
    """Its line has been drawn anew: a rename of the old one would be seen by nobody, and wait for its end for ever."""
    context = chromium.new_context(**DESKTOP)
    with tab(chromium, app.url, context) as one:
        start(one, "Bread", "flour and water")
        start(one, "Paris", "two days")
        with tab(chromium, app.url, context) as two:
            one.entry("Bread").hover()
            one.entry("Bread").locator(".entry-more").click()
            two.entry_menu("Bread", "Pin")
            expect(one.page.locator("#list h2").first).to_have_text("Pinned")
            expect(one.entry("Bread").locator(".entry-more")).to_have_attribute("aria-expanded", "true")
            one.page.get_by_role("menuitem", name="Rename").click()
            expect(one.page.locator(".entry-name")).to_be_focused()
            one.page.locator(".entry-name").fill("Rye")
            one.page.locator(".entry-name").press("Enter")
            expect(one.titles).to_have_text(["Rye", "Paris"])
            expect(two.titles).to_have_text(["Rye", "Paris"])
            one.entry("Rye").locator(".entry-more").click()
            two.entry_menu("Rye", "Delete")
            expect(one.page.locator(".menu")).to_have_count(0)
    context.close()


def test_a_pinned_one_stays_on_top(chat: Chat) -> None:
    start(chat, "Bread", "flour and water")
    start(chat, "Paris", "two days")
    chat.entry_menu("Bread", "Pin")
    expect(chat.page.locator("#list h2")).to_have_text(["Pinned", "Today"])
    expect(chat.titles).to_have_text(["Bread", "Paris"])
    chat.entry_menu("Bread", "Unpin")
    expect(chat.titles).to_have_text(["Paris", "Bread"])


def test_a_deleted_one_comes_back_with_undo(chat: Chat) -> None:
    conversation = start(chat, "Bread", "flour and water")
    start(chat, "Paris", "two days")
    chat.entry_menu("Bread", "Delete")
    expect(chat.titles).to_have_text(["Paris"])
    expect(chat.page.locator("#toast")).to_contain_text("Deleted")
    expect(chat.rows.last).to_contain_text("two days")
    chat.page.locator("#toast").get_by_role("button", name="Undo").click()
    expect(chat.titles).to_have_text(["Paris", "Bread"])
    chat.entry("Bread").click()
    expect(chat.rows.last).to_contain_text("flour and water")
    chat.entry_menu("Bread", "Delete")  # the one that is on the page
    expect(chat.page.locator("#greeting")).to_be_visible()
    chat.page.goto(re.sub(r"\?.*", "", chat.page.url) + f"?c={conversation}")
    expect(chat.problem).to_contain_text("not here")


def test_the_search_shows_where_and_opens_at_that_message(chat: Chat) -> None:
    start(chat, "Bread", "flour and water")
    for number in range(4):
        chat.ask(verbatim(f"filler {number} " * 150, 5_000))
    start(chat, "Paris", "two days by the water")
    start(chat, "Rome", "a week")
    search = chat.page.locator("#side-search")
    search.fill("flour")
    expect(chat.titles).to_have_text(["Bread"])
    expect(chat.page.locator("#list mark").first).to_have_text("flour")
    chat.page.locator("#list .entry-link").click()
    expect(
        chat.page.locator("#history .message-row.found, #history .message-row").filter(has_text="flour").first
    ).to_be_in_viewport()
    assert chat.page.evaluate("document.scrollingElement.scrollTop < document.scrollingElement.scrollHeight / 2")
    search.fill("<img src=x onerror=alert(1)> nowhere")
    expect(chat.page.locator("#list")).to_contain_text("Nothing found")
    search.press("Escape")
    expect(chat.titles).to_have_count(3)
    search.fill("Rome")
    expect(chat.titles.locator("mark")).to_have_text("Rome")


def test_a_running_one_is_marked_and_the_mark_goes(chat: Chat) -> None:
    start(chat, "Bread", "flour and water")
    chat.send("/say 400 tokens at 40 tok/s")
    expect(chat.entry("Bread").locator(".entry-running")).to_be_visible()
    chat.stop()
    chat.wait_idle()
    expect(chat.entry("Bread").locator(".entry-running")).to_have_count(0)


def test_the_list_follows_the_other_tabs_of_the_same_person_only(chromium: Browser, app: RunningApp) -> None:
    context = chromium.new_context(**DESKTOP)
    with tab(chromium, app.url, context) as one, tab(chromium, app.url) as stranger:
        start(one, "Bread", "flour and water")
        with tab(chromium, app.url, context) as two:
            expect(two.titles).to_have_text(["Bread"])
            start(two, "Paris", "two days")
            expect(one.titles).to_have_text(["Paris", "Bread"])
            two.entry_menu("Bread", "Delete")
            expect(one.titles).to_have_text(["Paris"])
        assert stranger.titles.count() == 0
        stranger.page.goto(f"{app.url}/?c={one.id}")
        expect(stranger.problem).to_contain_text("not yours")
        assert stranger.rows.count() == 0
        assert stranger.id == ""
    context.close()


@pytest.mark.soak  # it waits as long as such a tab does
def test_a_tab_that_nobody_looks_at_asks_anew_when_it_is_seen_again(chromium: Browser, app: RunningApp) -> None:
    """A browser has six connections to a server: hidden tabs must not hold one each."""
    context = chromium.new_context(**DESKTOP)
    hide = """state => {
        Object.defineProperty(document, 'visibilityState', {value: state, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    with tab(chromium, app.url, context) as one:
        start(one, "Bread", "flour and water")
        with tab(chromium, app.url, context) as two:
            expect(two.titles).to_have_text(["Bread"])
            with two.page.expect_request(lambda asked: "queue/join" in asked.url):
                two.page.evaluate(hide, "hidden")
            start(one, "Paris", "two days")
            assert two.titles.all_inner_texts() == ["Bread"]
            two.page.evaluate(hide, "visible")
            expect(two.titles).to_have_text(["Paris", "Bread"])
    context.close()


def test_the_list_folds_away_and_stays_so(chat: Chat) -> None:
    side = chat.page.locator("#side")
    expect(side).to_be_visible()
    chat.page.get_by_role("button", name="Hide the conversations").click()
    expect(side).not_to_be_visible()
    chat.reload()
    expect(side).not_to_be_visible()
    chat.page.get_by_role("button", name="Show the conversations").click()
    expect(side).to_be_visible()
    chat.reload()
    expect(side).to_be_visible()


def test_on_a_phone_the_list_is_a_drawer(chromium: Browser, app: RunningApp) -> None:
    with tab(chromium, app.url, **PHONE) as chat:
        side = chat.page.locator("#side")
        expect(side).not_to_be_visible()
        chat.ask(verbatim("flour and water"))
        chat.page.get_by_role("button", name="Show the conversations").tap()
        expect(side).to_be_visible()
        expect(chat.titles).to_have_count(1)
        chat.page.locator("#side").get_by_role("button", name="New chat").tap()
        expect(side).not_to_be_visible()
        expect(chat.page.locator("#greeting")).to_be_visible()
        chat.page.get_by_role("button", name="Show the conversations").tap()
        chat.page.touchscreen.tap(380, 400)  # beside it
        expect(side).not_to_be_visible()
        chat.page.get_by_role("button", name="Show the conversations").tap()
        chat.entry("flour").locator("a").tap()
        expect(side).not_to_be_visible()
        expect(chat.rows.last).to_contain_text("flour and water")
        assert chat.page.evaluate("document.scrollingElement.scrollWidth") <= 390
