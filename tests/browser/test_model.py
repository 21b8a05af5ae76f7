"""The page on real parts: the starter model answers in the browser; without a model the page stays up and says why."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import Chat, tab
from tests.browser.conftest import ServeApp
from tests.browser.server import RunningApp, running_app

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, starter_folder: Path) -> Iterator[RunningApp]:
    assert starter_folder.exists()  # fetched once for all tests: here only loading is to be waited for
    with running_app(tmp_path_factory.mktemp("app"), engine="local", model="starter") as running:
        yield running


@pytest.fixture
def chat(chromium: Browser, app: RunningApp) -> Iterator[Chat]:
    with tab(chromium, app.url) as opened:
        yield opened


def test_the_starter_model_answers_and_remembers(chat: Chat) -> None:
    expect(chat.page.locator("#greeting")).to_contain_text("SmolLM2-135M")
    expect(chat.page.locator("#banner")).to_contain_text("small demonstration model", timeout=60_000)
    chat.ask("What is the capital of France? Answer with one word.")
    expect(chat.rows.last).to_contain_text("Paris")
    chat.ask("And of Italy?")
    expect(chat.rows.last).to_contain_text("Rome")
    expect(chat.page.locator("#status")).to_contain_text(re.compile(r"first token \d+\.\d\d s · \d+ of 8,192 tokens"))


def test_the_model_stops_and_the_next_request_works(chat: Chat) -> None:
    chat.send("Write a long story about a dragon and a knight.")
    expect(chat.live.last).to_contain_text(re.compile(r"\w+ \w+"), timeout=60_000)
    chat.stop()
    chat.wait_idle()
    expect(chat.notes).to_have_text(["Stopped"])
    chat.ask("What is the capital of France? Answer with one word.")
    expect(chat.rows.last).to_contain_text("Paris")


def test_beams_show_dim_what_may_still_change(chat: Chat) -> None:
    """While they differ; in the answer nothing of that is left."""
    chat.choose_strategy("Beams 4")
    chat.send("Write one sentence about the sea.")
    expect(chat.tentative).to_be_attached(timeout=60_000)
    chat.wait_phase("idle", within_s=180)  # four beams cost four times as much
    expect(chat.rows).to_have_count(2)
    expect(chat.tentative).to_have_count(0)
    assert len(chat.texts()[-1]) > 20


def test_a_reload_finds_the_models_answer_again(chat: Chat) -> None:
    chat.send("Write two sentences about the sea.")
    expect(chat.live.last).to_contain_text(re.compile(r"\w+ \w+"), timeout=60_000)
    before = chat.raw()[-1]
    chat.reload()
    chat.wait_phase("idle", within_s=180)
    expect(chat.rows).to_have_count(2)
    assert chat.texts()[-1].startswith(before)


def test_a_model_that_does_not_exist_leaves_the_page_up_and_says_what_to_do(
    chromium: Browser, serve_app: ServeApp, tmp_path: Path
) -> None:
    missing = tmp_path / "no-such-model"
    app = serve_app(engine="local", model=missing)
    with tab(chromium, app.url) as chat:
        expect(chat.page.locator("#banner [role=alert]")).to_contain_text("no folder or file", timeout=60_000)
        chat.send("Hello?")
        expect(chat.problem).to_contain_text("no folder or file")
        expect(chat.box).to_have_value("Hello?")
        health = chat.page.request.get(f"{app.url}/health")
        assert health.status == 503
        assert health.json()["status"] == "failed"
