"""The race in a real browser: three lanes on the scripted engine, seen beside each other, stopped, and taken away."""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from streaming.ui.race import EXAMPLES
from tests.browser.chat import DESKTOP, PHONE, Chat, verbatim
from tests.browser.server import RunningApp
from tests.browser.test_accessible import faults

pytestmark = pytest.mark.browser
HOSTILE = (
    """One <img src=x onerror="alert(1)"> ${alert(1)} {{value}} </section><b>three</b> `four` \\n five six seven"""
)
LANES = ("Plain", "Prompt lookup", "Beams 2")


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Chat]:
    with browser.new_context(**options) as context:
        chat = Chat(context.new_page())
        chat.page.goto(f"{url}/race")
        expect(chat.page.locator("#race-start")).to_be_enabled(timeout=60_000)
        yield chat
        assert chat.faults == [], chat.faults


@pytest.fixture
def race(chromium: Browser, app: RunningApp) -> Iterator[Page]:
    with opened(chromium, app.url, **DESKTOP) as chat:
        yield chat.page


def start(page: Page, text: str, pace: int) -> None:
    page.locator("#race-prompt textarea").fill(verbatim(text, pace))
    page.locator("#race-start").click()


def lane(page: Page, name: str) -> Locator:
    return page.locator(f".lane[aria-label='{name}']")


def beyond(page: Page, edge: str) -> float:
    """How far the text of the first lane begins, or ends, below where its box does."""
    return float(
        page.evaluate(
            """edge => {
              const box = document.querySelector(".lane-text");
              return box.firstElementChild.getBoundingClientRect()[edge] - box.getBoundingClientRect()[edge];
            }""",
            edge,
        )
    )


def downloaded(page: Page, link: Locator) -> str:
    with page.expect_download() as download:
        link.click()
    return Path(download.value.path()).read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize(
    "options",
    [pytest.param(DESKTOP, marks=pytest.mark.soak), PHONE | {"color_scheme": "dark"}],
    ids=["desktop", "dark phone"],
)
def test_three_lanes_beside_each_other_and_what_came_of_them(
    chromium: Browser, app: RunningApp, options: dict[str, Any]
) -> None:
    """The last one is slow enough for axe to look at the page meanwhile. Nothing of the text is anything but text."""
    with opened(chromium, app.url, **options) as chat:
        page = chat.page
        expect(page.locator(".lane[data-state='waiting']")).to_have_count(len(LANES))
        start(page, HOSTILE, pace=4)
        expect(lane(page, "Plain")).to_have_attribute("data-state", "running", timeout=30_000)
        found = faults(chat, "running")
        expect(lane(page, "Beams 2")).to_have_attribute("data-state", "running", timeout=30_000)
        expect(lane(page, "Plain")).to_have_attribute("data-state", "again")
        expect(page.locator("#race-chart")).to_be_visible(timeout=60_000)
        for name in LANES:
            expect(lane(page, name)).to_have_attribute("data-state", "done")
            expect(lane(page, name).locator(".lane-text")).to_have_text(HOSTILE)
            expect(lane(page, name).locator("img")).to_have_count(0)
        for name in LANES[1:]:
            expect(lane(page, name).locator("h2")).to_contain_text("× plain")
            expect(lane(page, name).locator(".lane-figures")).to_contain_text("the same answer")
        expect(page.locator(".race-table tbody tr")).to_have_count(len(LANES))
        expect(page.locator("#race-chart").get_by_text("Tokens over time").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        assert found + faults(chat, "at the end") == []
        table = list(csv.DictReader(io.StringIO(downloaded(page, page.get_by_role("link", name="table.csv")))))
        assert [row["lane"] for row in table] == list(LANES)
        told = json.loads(downloaded(page, page.get_by_role("link", name="race.json")))
        assert [one["text"] for one in told["lanes"]] == [HOSTILE] * len(LANES)
        assert "PNG" in downloaded(page, page.locator("#race-chart").get_by_role("button"))[:8]


def test_a_stop_ends_the_race_and_keeps_what_there_is(race: Page) -> None:
    start(race, "word " * 40 + ("filling" * 60 + " ") * 50, pace=10)
    expect(lane(race, "Plain").locator(".lane-text")).to_contain_text("word word", timeout=30_000)
    assert beyond(race, "top") == 0, "a short text stands at the top"
    race.wait_for_function("document.querySelector('.lane-text').textContent.length > 2_000")
    assert beyond(race, "top") < 0, "of a long one the end is seen"
    assert beyond(race, "bottom") == 0
    race.locator("#race-stop").click()
    expect(lane(race, "Plain")).to_have_attribute("data-state", "stopped")
    expect(lane(race, "Prompt lookup")).to_have_attribute("data-state", "waiting")
    expect(race.locator(".race-table tbody tr")).to_have_count(1)
    start(race, "Once more", pace=500)
    expect(race.locator(".race-table tbody tr")).to_have_count(len(LANES), timeout=60_000)


def test_closing_the_tab_ends_the_races_computing(race: Page, chat: Chat) -> None:
    """The scripted engine makes one answer at a time: what is asked in the chat would wait for minutes."""
    start(race, "word " * 400, pace=2)
    expect(lane(race, "Plain").locator(".lane-text")).to_contain_text("word", timeout=30_000)
    race.close()
    chat.ask(verbatim("At last"))
    assert chat.texts()[-1] == "At last"


def test_what_is_refused_is_said(race: Page) -> None:
    race.locator("#race-prompt textarea").fill("  ")
    race.locator("#race-start").click()
    expect(race.locator("#race-notice .problem")).to_contain_text("empty")
    race.get_by_role("button", name="Tell a story").click()
    expect(race.locator("#race-prompt textarea")).to_have_value(EXAMPLES[2][1])


def test_from_the_chat_and_back(chat: Chat) -> None:
    chat.page.get_by_role("link", name="Race").click()
    expect(chat.page.locator("#race-start")).to_be_enabled(timeout=60_000)
    expect(chat.page.locator(".nav-holder")).to_be_hidden()
    chat.page.get_by_role("link", name="Back to the chat").click()
    chat.ready()
