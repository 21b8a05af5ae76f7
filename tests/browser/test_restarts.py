"""The app ends and comes back, or the network breaks, while tabs are open: each finds its own again, whole."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import DESKTOP, Chat, say_in_both, tab, verbatim
from tests.browser.server import RunningApp, free_port, running_app
from tests.browser.wire import wire

pytestmark = pytest.mark.browser

TEXT = " ".join(f"word{number}" for number in range(120))


class House:
    """The app on one port and one disk, which ends and starts again as often as one likes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._running = ExitStack()
        self.app = self._start()

    def _start(self) -> RunningApp:
        self.app = self._running.enter_context(
            running_app(self._folder, port=self._port, data_dir=self._folder / "data")
        )
        return self.app

    def end(self) -> None:
        self._running.close()

    def kill(self) -> None:
        self.app.process.send_signal(signal.SIGKILL)
        self.app.process.wait()
        self.end()

    def back(self, *chats: Chat) -> None:
        """Start it again, and wait until these tabs have noticed by themselves."""
        with ExitStack() as loads:
            for chat in chats:
                loads.enter_context(chat.page.expect_event("load", timeout=60_000))
            self._start()
        for chat in chats:
            chat.ready()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.end()


def test_a_restart_with_the_tab_open_leaves_the_chat_as_it_was(chromium: Browser, house: House) -> None:
    """Reported of textgen (5136, 5837, 2950): after a restart the open tab had lost its chat, or overwrote it, or had
    somebody else's. What was being written is said to be unfinished, and Continue finishes it."""
    with tab(chromium, house.app.url) as chat, tab(chromium, house.app.url) as stranger:
        first = chat.start("before")
        stranger.start("a stranger's riddle")
        chat.new()
        seen = begin(chat)
        chat.box.fill("typed while it was away")
        house.end()
        house.back(chat, stranger)
        check_cut(chat, seen)
        expect(chat.box).to_have_value("typed while it was away")
        expect(chat.titles).to_have_count(2)
        assert "riddle" not in chat.page.content()
        go_on(chat)
        expect(stranger.rows.last).to_contain_text("a stranger's riddle")
        expect(stranger.titles).to_have_count(1)
        chat.page.locator(f"#list .entry[data-id='{first}'] a").click()
        expect(chat.rows.last).to_contain_text("before")
        stranger.page.goto(f"{house.app.url}/?c={first}")
        expect(stranger.problem).to_contain_text("not yours")
        assert stranger.rows.count() == 0


def test_a_kill_in_the_middle_of_an_answer_takes_less_than_a_second_of_it(chromium: Browser, house: House) -> None:
    with tab(chromium, house.app.url) as chat:
        seen = begin(chat)
        chat.page.wait_for_timeout(1_000)
        house.kill()
        house.back(chat)
        check_cut(chat, seen)
        go_on(chat)


def begin(chat: Chat) -> str:
    """Have TEXT written, and say what of it is on the screen now."""
    chat.send(verbatim(TEXT, pace=30))
    chat.wait_live("word20")
    return chat.raw()[-1]


def check_cut(chat: Chat, seen: str) -> None:
    expect(chat.rows).to_have_count(2)
    left = chat.texts()[-1]
    assert left.startswith(seen)
    assert TEXT.startswith(left)
    assert left != TEXT
    expect(chat.notes.last).to_contain_text("Interrupted")


def go_on(chat: Chat) -> None:
    chat.page.get_by_role("button", name="Continue").click()
    expect(chat.rows.last).to_contain_text("word119", timeout=60_000)
    chat.wait_idle()
    assert chat.texts()[1::2] == [TEXT]
    expect(chat.notes).to_have_count(0)


@pytest.mark.soak  # that the store does so is tested always
def test_two_tabs_that_a_restart_found_open_overwrite_nothing(chromium: Browser, house: House) -> None:
    context = chromium.new_context(**DESKTOP)
    with tab(chromium, house.app.url, context) as one:
        one.start("first")
        with tab(chromium, one.page.url, context) as two:
            expect(two.rows).to_have_count(2)
            house.end()
            house.back(one, two)
            say_in_both(one, two)
    context.close()


def test_what_is_sent_as_the_network_breaks_is_there_once(chromium: Browser, app: RunningApp) -> None:
    """Before anybody has said that it has come: it is in the box still, or it is in the history."""
    with wire(app.url) as network, tab(chromium, network.url) as chat:
        chat.start("before")
        for number in range(2):
            text = f"/pace 500\n/text\nanswer {number}"
            before = chat.rows.count()
            with chat.page.expect_event("load", timeout=60_000):
                if number == 0:
                    network.cut()
                chat.send(text)
                if number:
                    chat.page.wait_for_timeout(30 * (number - 1))
                    network.cut()
                chat.page.wait_for_timeout(300)
                network.mend()
            chat.ready()
            chat.wait_idle()
            if chat.box.input_value():
                assert (chat.box.input_value(), chat.rows.count()) == (text, before)
                chat.box.press("Enter")
            expect(chat.rows).to_have_count(before + 2)
            chat.wait_idle()
            assert chat.texts()[-1] == f"answer {number}"
