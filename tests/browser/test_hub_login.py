"""Signing in at the Hub, as a Space with `hf_oauth: true` lets visitors: the same conversations in every browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import Chat, tab
from tests.browser.server import RunningApp, running_app
from tests.open_id import OpenId
from tests.serving import Served

pytestmark = pytest.mark.browser


@pytest.fixture
def hub() -> Iterator[OpenId]:
    hub = OpenId()
    served = Served(hub.app())
    hub.url = served.url
    yield hub
    served.close()


@pytest.fixture
def space(hub: OpenId, tmp_path: Path) -> Iterator[RunningApp]:
    with running_app(tmp_path, environment=hub.environment(), host="127.0.0.1") as running:
        yield running


def press_login(chat: Chat) -> None:
    with chat.page.expect_event("load", timeout=60_000):
        chat.page.locator("#login").click()
    chat.ready()


def test_who_signs_in_has_the_same_conversations_everywhere_and_nobody_else_has(
    chromium: Browser, hub: OpenId, space: RunningApp
) -> None:
    with tab(chromium, space.url) as desk, tab(chromium, space.url) as phone:
        desk.start("before anybody signed in")
        expect(desk.page.locator("#login")).to_have_text("Sign in with Hugging Face")
        press_login(desk)
        expect(desk.page.locator("#login")).to_have_text("Sign out ann")
        expect(desk.titles).to_have_count(0)
        anns = desk.start("a word of ann's")
        press_login(phone)
        expect(phone.titles).to_have_count(1)
        phone.page.locator("#list .entry-link").click()
        expect(phone.rows.last).to_contain_text("a word of ann's")
        press_login(phone)  # out again
        expect(phone.page.locator("#login")).to_have_text("Sign in with Hugging Face")
        expect(phone.titles).to_have_count(0)
        hub.user = "bob"
        press_login(phone)
        expect(phone.page.locator("#login")).to_have_text("Sign out bob")
        expect(phone.titles).to_have_count(0)
        phone.page.goto(f"{space.url}/?c={anns}")
        expect(phone.problem).to_contain_text("not yours")
        assert phone.rows.count() == 0
        press_login(desk)  # out: what this browser had before is there again
        expect(desk.titles).to_have_count(1)
        desk.page.locator("#list .entry-link").click()
        expect(desk.rows.last).to_contain_text("before anybody signed in")
