"""The page as a person uses it: type, press, read. Every wait is for something to be seen, never for time to pass."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}


def verbatim(text: str, pace: int = 500) -> str:
    """A message that the scripted engine answers with this text, at `pace` tokens/s."""
    return f"/pace {pace}\n/text\n{text}"


class Chat:
    """One tab with the app in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._hear)
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _hear(self, message: ConsoleMessage) -> None:
        """What the page itself must not ask for. Images and films in answers are somebody else's."""
        if "Content Security Policy" in message.text and not re.search('"(img|media)-src ', message.text):
            self.faults.append(message.text)

    def open(self, url: str) -> "Chat":
        self.page.goto(url)
        return self.ready()

    def reload(self) -> "Chat":
        self.page.reload()
        return self.ready()

    def ready(self) -> "Chat":
        expect(self.box).to_be_visible(timeout=60_000)
        expect(self.page.locator("#status .status-line")).to_be_visible(timeout=60_000)
        return self

    # -- what a hand does

    @property
    def box(self) -> Locator:
        return self.page.locator("#composer textarea")

    def send(self, text: str) -> None:
        self.box.fill(text)
        self.box.press("Enter")

    def ask(self, text: str) -> None:
        """Send, and wait for the end of the answer."""
        before = self.rows.count()
        self.send(text)
        expect(self.box).to_have_value("")
        self.wait_idle()
        expect(self.rows.nth(before + 1)).to_be_attached()

    def choose_strategy(self, name: str) -> None:
        """In the drawer, which is closed again."""
        self.page.get_by_role("button", name="Settings", exact=True).click()
        self.page.locator("#strategy input").click()
        self.page.get_by_role("option", name=name, exact=True).click()
        self.page.get_by_role("button", name="Close the settings").click()

    def switch_marks(self, on: bool) -> None:
        """In the drawer, which is closed again."""
        self.page.get_by_role("button", name="Settings", exact=True).click()
        self.page.get_by_label("Mark accepted guesses").set_checked(on)
        self.page.get_by_role("button", name="Close the settings").click()

    def stop(self) -> None:
        self.page.locator("#stop").click()

    def tool(self, row: Locator, name: str) -> None:
        row.hover()
        row.locator(f".tool-{name}").click()

    def more(self, row: Locator, name: str) -> None:
        """What is behind a message's "more" button."""
        row.hover()
        row.locator(".tool-more").click()
        self.page.get_by_role("menuitem", name=name).click()

    def new(self) -> None:
        self.page.get_by_role("button", name="New chat", exact=True).first.click()
        expect(self.page.locator("#greeting")).to_be_visible()
        self.wait_phase("idle")  # it is shown a moment later, and Enter waits for it

    def start(self, *texts: str) -> str:
        """A new conversation in which these are answers; returns its id."""
        if self.rows.count():
            self.new()
        for text in texts:
            self.ask(verbatim(text))
        return self.id

    def entry(self, text: str) -> Locator:
        """A line of the side list."""
        return self.page.locator("#list .entry").filter(has_text=text)

    def entry_menu(self, text: str, name: str) -> None:
        self.entry(text).hover()
        self.entry(text).locator(".entry-more").click()
        self.page.get_by_role("menuitem", name=name).click()

    # -- what an eye sees

    @property
    def id(self) -> str:
        """The conversation that the address bar names."""
        return parse_qs(urlsplit(self.page.url).query).get("c", [""])[0]

    @property
    def titles(self) -> Locator:
        return self.page.locator("#list .entry-title")

    @property
    def rows(self) -> Locator:
        """The messages of the history; the live answer is not among them."""
        return self.page.locator("#history .message-row")

    @property
    def live(self) -> Locator:
        return self.page.locator("#live .message-row.bot-row")

    @property
    def tentative(self) -> Locator:
        """What beams may still change."""
        return self.page.locator(".message-row .tentative")

    def marked(self, part: str) -> list[str]:
        """What is marked as guessed in "history" or "live", word for word as it is shown."""
        script = """async part => {
            await new Promise(shown => requestAnimationFrame(() => requestAnimationFrame(shown)));
            const word = range => range.startContainer.data.slice(range.startOffset, range.endOffset);
            return [...CSS.highlights.get(`guessed-${part}`)].map(word);
        }"""
        return list(self.page.evaluate(script, part))

    @property
    def notes(self) -> Locator:
        return self.page.locator("#history .turn-note")

    @property
    def problem(self) -> Locator:
        return self.page.locator("#problem .problem")

    def texts(self) -> list[str]:
        """The messages of the history, as they are shown."""
        return [text.strip() for text in self.rows.locator(".message-content .md").all_inner_texts()]

    def raw(self) -> list[str]:
        """The messages of the history and then the live ones, as they are shown."""
        return [text.strip() for text in self.page.locator(".message-row .message-content .md").all_inner_texts()]

    def wait_live(self, text: str | re.Pattern[str]) -> None:
        expect(self.live.last).to_contain_text(text)

    def wait_phase(self, *phases: str, within_s: float = 30) -> None:
        wanted = ", ".join(f'[data-phase="{phase}"]' for phase in phases)
        expect(self.page.locator("#status").locator(wanted)).to_be_visible(timeout=1000 * within_s)

    def wait_idle(self) -> None:
        self.wait_phase("idle")
        expect(self.page.locator("#live .message-row")).to_have_count(0)


def say_in_both(one: Chat, two: Chat) -> None:
    """Each of two tabs, in which a conversation has shown "first" so far, goes on with it: neither overwrites anything.
    The first one ends on what the second one has said."""
    two.ask(verbatim("from the second tab"))
    one.ask(verbatim("from the first tab"))  # it had not seen the second one's: a version beside it
    assert one.texts()[1::2] == ["first", "from the first tab"]
    expect(one.rows.nth(2).locator(".versions")).to_contain_text("2/2")
    one.rows.nth(2).get_by_role("button", name="Earlier version").click()
    expect(one.rows.last).to_contain_text("from the second tab")


@contextmanager
def tab(browser: Browser, url: str, context: BrowserContext | None = None, **options: Any) -> Iterator[Chat]:
    """A tab on the app, in a browser context of its own unless one is given. Fails on any script error."""
    own = context or browser.new_context(**({} if options else DESKTOP) | options)
    try:
        chat = Chat(own.new_page()).open(url)
        yield chat
        assert chat.faults == [], chat.faults  # this file is no test: pytest would not say them
    finally:
        if context is None:
            own.close()
