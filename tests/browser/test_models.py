"""Another model is chosen on the page, from the list or by its name on the Hub, and every tab shows it."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.chat import PHONE, Chat, tab, verbatim
from tests.browser.conftest import ServeApp
from tests.hub_server import Repos, hub
from tests.tiny import tiny_folder

pytestmark = pytest.mark.browser


def panel(page: Page) -> Locator:
    return page.locator("#models-dialog")


def open_panel(chat: Chat) -> Locator:
    chat.page.locator("#header .model").click()
    expect(panel(chat.page).locator(".model-line").first).to_be_visible()
    return panel(chat.page)


def line(choices: Locator, name: str) -> Locator:
    return choices.locator(".model-line").filter(has=choices.page.get_by_text(name, exact=True))


def named(chat: Chat, name: str) -> None:
    """The model's name, wherever an empty page shows it."""
    expect(chat.page.locator("#header .model")).to_have_text(name, timeout=60_000)
    expect(chat.box).to_have_attribute("placeholder", f"Message {name}")
    expect(chat.page.locator("#greeting h1")).to_have_text(f"Chat with {name}")


@pytest.fixture
def chat(chromium: Browser, serve_app: ServeApp) -> Iterator[Chat]:
    """A tab on an app of its own: the others' model is not to change."""
    with tab(chromium, serve_app().url) as opened:
        yield opened


def test_a_model_is_chosen_and_every_tab_knows(chromium: Browser, chat: Chat) -> None:
    named(chat, "scripted")
    chat.send("/say 60 tokens at 30 tok/s")
    chat.wait_phase("answering")
    with tab(chromium, chat.page.url.partition("?")[0], **PHONE) as other:
        choices = open_panel(chat)
        expect(choices.get_by_role("heading", name="In use")).to_be_visible()
        choices.get_by_role("button", name="Use scripted-b", exact=True).click()
        expect(choices.locator("#models-going")).to_be_visible()
        expect(line(choices, "scripted-b")).to_contain_text("in use", timeout=60_000)
        choices.get_by_role("button", name="Close").click()
        chat.wait_idle()
        assert len(chat.texts()[1].split()) == 60, "the answer under way ended with the model it began with"
        named(other, "scripted-b")
        other.ask(verbatim("by the other one"))
        assert other.texts()[-1] == "by the other one"
        other.reload()
        named(other, "scripted-b")


def test_a_model_that_cannot_be_loaded_is_said_and_the_old_one_goes_on(chat: Chat) -> None:
    choices = open_panel(chat)
    choices.get_by_role("button", name="Use scripted-broken", exact=True).click()
    expect(choices.locator(".problem")).to_be_visible(timeout=60_000)
    expect(line(choices, "scripted")).to_contain_text("in use")
    expect(choices.locator(".problem")).to_contain_text("scripted-broken")
    choices.get_by_role("button", name="Close").click()
    named(chat, "scripted")
    chat.ask(verbatim("still here"))
    assert chat.texts()[-1] == "still here"
    expect(open_panel(chat).locator(".problem")).to_contain_text("scripted-broken")
    choices.get_by_role("button", name="Use scripted-b", exact=True).click()
    expect(choices.locator(".problem")).to_be_hidden()
    expect(chat.page.locator("#header .model")).to_have_text("scripted-b")


def test_where_anybody_can_come_the_name_is_only_a_name(chromium: Browser, serve_app: ServeApp) -> None:
    with tab(chromium, serve_app(public=True).url) as chat:
        named(chat, "scripted")
        expect(chat.page.locator("#header .model")).to_be_disabled()


def test_a_model_of_the_hub_is_looked_up_fetched_given_up_fetched_again_and_answers(
    chromium: Browser, serve_app: ServeApp, tmp_path: Path
) -> None:
    folder = tiny_folder(tmp_path / "tiny", seed=1)
    repos = Repos({"owner/other": {file.name: file.read_bytes() for file in folder.iterdir()}})
    with hub(repos) as address:
        app = serve_app(
            engine="local",
            model=tiny_folder(tmp_path / "first"),
            max_new_tokens=8,
            environment={"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1"},
        )
        with tab(chromium, app.url) as chat:
            named(chat, "first")
            chat.ask("Hello")
            choices = open_panel(chat)
            field = choices.get_by_label("Any other model of the Hub")
            field.fill("owner/nothing")
            field.press("Enter")
            expect(choices.locator(".problem")).to_contain_text("There is no model owner/nothing on the Hub")
            field.fill("owner/other")
            field.press("Enter")
            found = choices.locator("#models-found .model-line")
            expect(found).to_contain_text(re.compile(r"other.*download.*memory"))
            assert not any("safetensors" in name for name in repos.served), "nothing was fetched to look it up"
            go_on = threading.Event()
            repos.gate = go_on
            found.get_by_role("button", name="Use").click()
            expect(choices.locator("#models-going")).to_contain_text("owner/other")
            choices.get_by_role("button", name="Cancel").click()
            expect(choices.locator("#models-going")).to_be_hidden()
            go_on.set()
            field.press("Enter")
            found.get_by_role("button", name="Use").click()
            expect(chat.page.locator("#header .model")).to_have_text("other", timeout=60_000)
            choices.get_by_role("button", name="Close").click()
            chat.ask("Hello again")
            expect(chat.rows).to_have_count(4)
