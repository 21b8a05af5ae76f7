"""Takes the pictures of the page that docs and reviewers look at: `python -m tests.browser.screenshots [FOLDER]`.

In a folder: desktop and phone, light and dark; empty, reading, thinking, streaming, at rest, an error, the drawer, the
help, the models, beams, guesses, the list, its search, versions; on the scripted engine. Without one: those of README
and of the guide, which show the starter model.
"""

import re
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, PHONE, Chat, tab, verbatim
from tests.browser.chromium import launched
from tests.browser.server import ROOT, running_app, shared_app

TALKS = (
    ("Bread for beginners", "Flour, water, salt and time: leave the dough overnight, and bake it hot."),
    ("Paris in two days", "The first day by the river, the second in the museums; croissants with butter on both."),
    ("Why the sea is salt", "Rivers bring a little of it, and only the water leaves again."),
    ("Type hints", "A hint is a promise to the reader, and mypy holds you to it."),
)
HOURS = """The library keeps **open hours** from nine to six.

```python
def hours(day):
    return open_at[day], shut_at[day]
```

1. Bring your card.
2. Return what you have borrowed.
3. Ask at the desk.

On a Sunday the library is shut.
"""
GUIDE_QUESTIONS = (
    "Does bread dough need butter?",
    "What should I see in two days in Paris?",
    "Why is the sea salty?",
)
README_QUESTION = "Explain in a few sentences why the sky is blue."


def scenes(chat: Chat, shoot: "Shoot") -> None:
    """One conversation through everything that the page can look like."""
    shoot("empty")
    chat.send("/wait 3\n/think 4s\n/pace 40")
    chat.wait_phase("prefill")
    shoot("reading")
    chat.wait_phase("thinking")
    expect(chat.page.locator("#live .thought-group")).to_contain_text("An overview first", timeout=30_000)
    shoot("thinking")
    chat.wait_phase("answering")
    chat.wait_live("What to look at")
    expect(chat.live.last.locator("ol li")).not_to_have_count(0, timeout=30_000)
    shoot("streaming")
    chat.wait_idle()
    shoot("rest")
    chat.ask("/fail after 12")
    shoot("error")
    chat.send("word " * 9_000)
    expect(chat.problem).to_be_visible()
    shoot("refused")
    chat.box.fill("")
    chat.page.get_by_role("button", name="Settings", exact=True).click()
    chat.page.wait_for_timeout(600)  # the drawer slides
    shoot("drawer")
    chat.page.get_by_role("button", name="Close the settings").click()
    chat.page.wait_for_timeout(600)
    chat.page.locator("[data-open='help-dialog']").click()
    shoot("help")
    chat.page.keyboard.press("Escape")
    chat.page.locator("#header .model").click()
    expect(chat.page.locator(".model-line").first).to_be_visible()
    shoot("models")
    chat.page.keyboard.press("Escape")
    strategies(chat, shoot)
    conversations(chat, shoot)


def strategies(chat: Chat, shoot: "Shoot") -> None:
    """What beams may still change, and what guesses have brought."""
    chat.new()
    chat.choose_strategy("Beams 4")
    chat.send(verbatim(HOURS, 12))
    chat.wait_live("Return what")
    shoot("beams")
    chat.wait_idle()
    chat.choose_strategy("Prompt lookup")
    chat.switch_marks(True)
    chat.ask(verbatim(HOURS))
    shoot("guesses")
    chat.choose_strategy("Plain")
    chat.switch_marks(False)


def conversations(chat: Chat, shoot: "Shoot") -> None:
    """The list at the side, its search, versions, and the menus."""
    for title, text in TALKS:
        chat.start(text)
        if not chat.page.locator("#side").is_visible():
            chat.page.get_by_role("button", name="Show the conversations").click()
        chat.entry_menu(text[:20], "Rename")
        chat.page.locator(".entry-name").fill(title)
        chat.page.locator(".entry-name").press("Enter")
        if chat.page.locator("#scrim").is_visible():
            chat.page.locator("#side").get_by_role("button", name="Hide the conversations").click()
            expect(chat.page.locator("#side")).not_to_be_visible()  # it slides away, with a "New chat" of its own
    chat.tool(chat.rows.last, "retry")
    chat.wait_idle()
    chat.more(chat.rows.first, "Branch off here")
    expect(chat.rows).to_have_count(1)
    chat.page.go_back()
    expect(chat.rows).to_have_count(2)
    chat.rows.last.locator(".tool-more").click()
    shoot("versions")
    chat.page.keyboard.press("Escape")
    if not chat.page.locator("#side").is_visible():
        chat.page.get_by_role("button", name="Show the conversations").click()
        chat.page.wait_for_timeout(300)
    chat.entry_menu("Paris", "Pin")
    expect(chat.page.locator("#list h2").first).to_have_text("Pinned")
    shoot("list")
    chat.page.locator("#side-search").fill("butter")
    expect(chat.page.locator("#list mark").first).to_be_visible()
    shoot("search")


class Shoot:
    def __init__(self, chat: Chat, folder: Path, name: str) -> None:
        self._chat, self._folder, self._name = chat, folder, name

    def __call__(self, scene: str) -> None:
        self._chat.page.screenshot(path=self._folder / f"{self._name}-{scene}.png")


def gallery(browser: Browser, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as logs, running_app(Path(logs)) as app:
        for device, options in (("desktop", DESKTOP), ("phone", PHONE)):
            for scheme in ("light", "dark"):
                with tab(browser, app.url, **options, color_scheme=scheme) as chat:
                    scenes(chat, Shoot(chat, folder, f"{device}-{scheme}"))


def readme(browser: Browser, folder: Path) -> None:
    """The starter model, caught in mid-answer."""
    with tempfile.TemporaryDirectory() as logs, running_app(Path(logs), engine="local", model="starter") as app:
        for device, options in (("desktop", DESKTOP), ("phone", PHONE)):
            for scheme in ("light", "dark"):
                with tab(browser, app.url, **options, color_scheme=scheme) as chat:
                    chat.ask(README_QUESTION)
                    chat.send("And why is the sunset red?")
                    expect(chat.page.locator("#status")).to_contain_text("tok/s", timeout=60_000)
                    chat.page.wait_for_timeout(1_500)
                    chat.page.screenshot(path=folder / f"{device}-{scheme}.png")
                    chat.stop()
                    chat.wait_idle()


def guide(browser: Browser, folder: Path) -> None:
    """What the guide speaks of: the models, the list and its search, beams, the link for others."""
    link = "https://0123456789abcdef.gradio.live"
    with (
        shared_app(link, engine="local", model="starter", max_new_tokens=80) as address,
        tab(browser, address, **DESKTOP) as chat,
    ):
        shoot = Shoot(chat, folder, "guide")
        chat.page.locator("#header .model").click()
        expect(chat.page.locator(".model-line").first).to_be_visible()
        shoot("models")
        chat.page.keyboard.press("Escape")
        for question in GUIDE_QUESTIONS:
            chat.new()
            chat.ask(question)
        chat.tool(chat.rows.last, "retry")
        chat.wait_idle()
        chat.page.locator("#side-search").fill("butter")
        expect(chat.page.locator("#list mark").first).to_be_visible()
        shoot("history")
        chat.page.locator("#side-search").fill("")
        chat.new()
        chat.choose_strategy("Beams 2")
        chat.send(README_QUESTION)
        expect(chat.live.last).to_contain_text("light", timeout=60_000)
        expect(chat.tentative).to_have_text(re.compile(r"\w+ \w+"))
        shoot("beams")
        chat.stop()
        chat.page.get_by_role("button", name="Share", exact=True).click()
        shoot("share")


def main(arguments: list[str]) -> None:
    with launched() as browser:
        if arguments:
            folder = Path(arguments[0])
            folder.mkdir(parents=True, exist_ok=True)
            gallery(browser, folder)
        else:
            folder = ROOT / "assets" / "screenshots"
            folder.mkdir(parents=True, exist_ok=True)
            readme(browser, folder)
            guide(browser, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
