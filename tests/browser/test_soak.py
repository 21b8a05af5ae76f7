"""Reloads, dropped connections and stops at random moments, in the browser: nothing is lost, doubled or left hanging.

A few dropped connections always; `-m soak` runs all at full size. The seed is printed; TEST_SEED repeats one.
"""

import os
import random
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import Chat, tab
from tests.browser.conftest import ServeApp
from tests.browser.wire import wire

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1_800)]

FULL = pytest.param(100, id="full", marks=pytest.mark.soak)
SIZES = [pytest.param(3, id="few"), FULL]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("TEST_SEED", random.randrange(2**32)))
    print(f"TEST_SEED={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("times", [FULL])
def test_reloads_at_random_moments(chromium: Browser, serve_app: ServeApp, chance: random.Random, times: int) -> None:
    """Reported of Gradio (3106) and textgen (5136): a reload lost the answer, or showed parts of it twice."""
    with tab(chromium, serve_app().url) as chat:
        read_disturbed(chat, times, chance, chat.reload)


@pytest.mark.parametrize("times", SIZES)
def test_dropped_connections_at_random_moments(
    chromium: Browser, serve_app: ServeApp, chance: random.Random, times: int
) -> None:
    """The answer goes on without a viewer, and the page finds it again by itself."""
    with wire(serve_app().url) as network, tab(chromium, network.url) as chat:

        def drop() -> None:
            with chat.page.expect_event("load", timeout=60_000):
                network.cut()
                chat.page.wait_for_timeout(chance.uniform(0, 1_000))
                network.mend()
            chat.ready()

        read_disturbed(chat, times, chance, drop)


def read_disturbed(chat: Chat, times: int, chance: random.Random, disturb: Callable[[], object]) -> None:
    """Answer upon answer, each disturbed at some moment of its writing, and each whole and once in the end."""
    expected: list[str] = []
    for number in range(times):
        text = " ".join(f"{number}.{word}" for word in range(30))
        chat.send(f"/wait 0.3\n/pace 40\n/text\n{text}")
        expect(chat.box).to_have_value("")
        chat.page.wait_for_timeout(chance.uniform(0, 1_300))
        disturb()
        expected.append(text)
        expect(chat.rows).to_have_count(2 * len(expected))
        chat.wait_idle()
        assert chat.texts()[1::2] == expected
        if len(expected) == 10:  # a conversation of its own for the next ten
            chat.new()
            expected.clear()


@pytest.mark.parametrize("times", [FULL])
def test_stops_at_random_moments(chromium: Browser, serve_app: ServeApp, chance: random.Random, times: int) -> None:
    app = serve_app()
    with tab(chromium, app.url) as chat:
        for number in range(times):
            chat.send("/wait 0.4\n/think 0.4\n/pace 60\n/say 400 tokens")
            expect(chat.page.locator("#stop")).to_be_visible()
            chat.page.wait_for_timeout(chance.uniform(0, 1_500))
            chat.stop()
            chat.wait_idle()
            expect(chat.notes.last).to_have_text("Stopped")
            chat.ask(f"/pace 500\n/text\nanswer {number}")
            assert chat.texts()[-1] == f"answer {number}"
            assert chat.page.request.get(f"{app.url}/health").json()["running"] == 0
            chat.new()
