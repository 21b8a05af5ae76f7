"""How else than word by word an answer is found: chosen in the drawer, seen in the answer, on the scripted engine."""

import pytest
from playwright.sync_api import expect

from tests.browser.chat import Chat, verbatim

pytestmark = pytest.mark.browser


def test_what_beams_may_still_change_is_dim_and_a_stop_keeps_none_of_it(chat: Chat) -> None:
    chat.choose_strategy("Beams 4")
    chat.send(verbatim("word " * 400, 10))
    expect(chat.tentative).to_have_text("word word word word")
    chat.stop()
    chat.wait_idle()
    expect(chat.tentative).to_have_count(0)
    said = chat.texts()[-1]
    expect(chat.page.locator("#history .figures")).to_contain_text(f"{said.count('word')} tokens")
    chat.reload()
    assert chat.texts()[-1] == said
    expect(chat.page.locator("#strategy input")).to_have_value("Beams 4")


def test_what_beams_may_still_change_acts_no_more_than_an_answer(chat: Chat) -> None:
    """Markup, links and half a fence; nothing of it becomes an element, and where it would be read as code there is
    none of it."""
    links = "www.example.com [a](javascript:alert(1))"
    hostile = f"<img/src=x/onerror=alert(1)> <script>alert(1)</script> {links} $$x$$ \\(y\\) **b** `c` "
    chat.choose_strategy("Beams 4")
    chat.page.evaluate(
        """() => {
            window.acted = [];
            const act = ".tentative :not(span), .tentative .katex";
            const look = () => window.acted.push(...document.querySelectorAll(act));
            new MutationObserver(look).observe(document.querySelector("#live"), { childList: true, subtree: true });
        }"""
    )
    chat.send(verbatim(f"so {hostile * 8}\n```\ncode code code code\n```\nend", 20))
    for shown in ("alert(1)", "$$x$$", "\\(y\\)", "**b**"):
        expect(chat.tentative).to_contain_text(shown)
    chat.wait_idle()
    assert chat.page.evaluate("acted.map(element => element.outerHTML)") == []
    expect(chat.page.locator("#history .bot-row pre code")).to_contain_text("code code code code")
    expect(chat.rows.last).not_to_contain_text("tentative")
    assert chat.page.locator("#history img").count() == 0


def test_an_answer_that_was_stopped_goes_on_by_beams(chat: Chat) -> None:
    chat.send(verbatim("word " * 60, 20))
    chat.wait_live("word word")
    chat.stop()
    chat.wait_idle()
    before = chat.texts()[-1]
    chat.choose_strategy("Beams 2")
    chat.page.get_by_role("button", name="Continue").click()
    expect(chat.tentative).to_have_text("word word")
    expect(chat.live.last).to_contain_text(before)
    chat.wait_idle()
    assert chat.texts()[-1] == ("word " * 60).strip()


def test_what_came_of_guesses_is_said(chat: Chat) -> None:
    """After "one" the prompt knows how it goes on: twice five guesses, of which three would lead past the end."""
    chat.choose_strategy("Prompt lookup")
    chat.ask(verbatim("one two three four five six seven eight nine ten"))
    expect(chat.page.locator("#status")).to_contain_text("70% of guesses accepted")
    expect(chat.page.locator("#status")).to_contain_text("3.3 tokens a step")


# What the scripted engine guesses five words of at a time; the sixth is its own.
FAMILIAR = (
    "one two three **four five** six\n\n```python\ndef greet(name):\n    return name\n```\n\n"
    "👋🏽 [a link](http://example.com/six) `code` <img/src=x/onerror=alert(1)> $x^2$ &amp; end\n\n"
)
OF_GUESSES = ["one two three", "four five", "def", "greet", "(", "name", ")", ":", "return", "name", "👋🏽", "a link"]
OF_GUESSES += ["code", "<img/src=x/onerror=alert(1)>", "& end"]


def test_what_was_guessed_is_marked_when_that_is_wanted(chat: Chat) -> None:
    """Off at first; then live, at rest, after a reload, and no more once it is switched off."""
    chat.choose_strategy("Prompt lookup")
    chat.ask(verbatim(FAMILIAR * 2))
    assert chat.marked("history") == []
    chat.switch_marks(True)
    first = chat.marked("history")
    assert first[:15] == OF_GUESSES
    chat.send(verbatim(FAMILIAR * 6, 8))
    chat.wait_live("greet")
    expect(chat.live.last).to_contain_text("end")
    live = chat.marked("live")
    assert live[:15] == OF_GUESSES
    assert chat.marked("history") == first, "the earlier answer keeps its marks meanwhile"
    chat.wait_idle()
    at_rest = chat.marked("history")
    assert at_rest[: len(first) + len(live)] == first + live
    chat.reload()
    chat.page.wait_for_function("CSS.highlights.get('guessed-history').size > 0")
    assert chat.marked("history") == at_rest
    chat.switch_marks(False)
    assert chat.marked("history") == []


def test_marks_change_neither_what_is_shown_nor_what_is_copied(chat: Chat) -> None:
    """They are painted over the text: the page is the same with them, to the last tag."""
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.choose_strategy("Prompt lookup")
    chat.ask(verbatim(FAMILIAR * 2))
    shown = chat.page.locator("#history .bot-row .message-content")
    without = shown.inner_html()
    chat.switch_marks(True)
    assert chat.marked("history")
    assert shown.inner_html() == without
    chat.tool(chat.rows.last, "copy")
    assert chat.page.evaluate("navigator.clipboard.readText()") == (FAMILIAR * 2)
    assert chat.page.locator("#history img").count() == 0


def test_a_thought_is_marked_where_it_is_open_and_a_stopped_answer_that_went_on_in_both_parts(chat: Chat) -> None:
    chat.choose_strategy("Prompt lookup")
    chat.switch_marks(True)
    chat.send("/think 6s\n/pace 20\n/text\n" + "one two three four five six seven eight nine ten " * 12)
    chat.wait_live("two three four five")
    chat.stop()
    chat.wait_idle()
    before = chat.marked("history")
    assert before[0] == "two three four five six"
    chat.page.get_by_role("button", name="Continue").click()
    expect(chat.notes).to_have_count(0)
    chat.wait_idle()
    after = chat.marked("history")
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) > len(before)
    chat.page.locator("#history .thought-group .title").click()
    chat.page.wait_for_function("count => CSS.highlights.get('guessed-history').size > count", arg=len(after))
    assert chat.marked("history")[-len(after) :] == after
    assert "question is short, so the" in chat.marked("history")


def test_a_strategy_that_there_is_not_is_refused_and_nothing_is_lost(chat: Chat) -> None:
    chat.page.get_by_role("button", name="Settings", exact=True).click()
    strategy = chat.page.locator("#strategy input")
    strategy.fill("Beams 99")
    strategy.press("Enter")
    chat.send("Hello there")
    expect(chat.problem).to_contain_text("num_beams is 99")
    expect(chat.box).to_have_value("Hello there")
    strategy.fill("Plain")
    strategy.press("Enter")
    chat.box.press("Enter")
    expect(chat.rows).to_have_count(2, timeout=60_000)
