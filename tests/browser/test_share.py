"""The public link on the page, and the limits for whoever comes by it."""

import io
from collections.abc import Iterator

import pytest
import zxingcpp
from PIL import Image
from playwright.sync_api import Browser, expect

from tests.browser.chat import PHONE, Chat, tab, verbatim
from tests.browser.server import shared_app

pytestmark = pytest.mark.browser

LINK = "https://0123456789abcdef.gradio.live"


@pytest.fixture
def shared() -> Iterator[str]:
    with shared_app(LINK, requests_per_minute=2) as address:
        yield address


def test_a_camera_reads_the_link_from_the_page(chromium: Browser, shared: str) -> None:
    for options in ({}, PHONE | {"color_scheme": "dark"}):
        with tab(chromium, shared, **options) as chat:
            chat.page.get_by_role("button", name="Share", exact=True).click()
            panel = chat.page.locator("#share-dialog")
            expect(panel.get_by_role("link")).to_have_attribute("href", LINK)
            (code,) = zxingcpp.read_barcodes(Image.open(io.BytesIO(panel.screenshot())))
            assert code.text == LINK
            panel.get_by_role("button", name="Close").click()
            expect(panel).not_to_be_visible()


def test_without_a_link_there_is_nothing_to_share(chat: Chat) -> None:
    expect(chat.page.get_by_role("button", name="Share", exact=True)).to_have_count(0)


def test_who_asks_too_often_is_told_when_to_come_back_and_keeps_the_text(chromium: Browser, shared: str) -> None:
    with tab(chromium, shared) as chat:
        for _ in range(2):
            chat.ask(verbatim("yes"))
        chat.send("once more")
        expect(chat.problem).to_contain_text("You have asked 2 times within a minute. Ask again in")
        expect(chat.box).to_have_value("once more")
        assert chat.rows.count() == 4
        with tab(chromium, shared) as other:
            other.ask(verbatim("somebody else is answered"))
