"""What the browser tests stand on: a real Chromium, and the app in a process of its own.

The browser is found or installed once, after collecting, so that no test's time limit pays for it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chat import Chat, tab
from tests.browser.chromium import NoBrowser, launched, provide
from tests.browser.server import RunningApp, running_app

expect.set_options(timeout=30_000)  # a busy machine is slow, not wrong

ServeApp = Callable[..., RunningApp]


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = any("chromium" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        try:
            provide()
        except NoBrowser as error:
            raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="package")  # ended before the other tests: its event loop runs on in their thread
def chromium() -> Iterator[Browser]:
    """The browser. Tests open a context of their own: `with chromium.new_context() as context`."""
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """The app that tests share which do not need one of their own: each is a visitor of its own there."""
    with running_app(tmp_path_factory.mktemp("app")) as running:
        yield running


@pytest.fixture
def chat(chromium: Browser, app: RunningApp) -> Iterator[Chat]:
    """A desktop tab on the shared app, in a browser of its own."""
    with tab(chromium, app.url) as opened:
        yield opened


@pytest.fixture
def serve_app(tmp_path: Path) -> Iterator[ServeApp]:
    """Starts apps: `serve_app()`, `serve_app(max_new_tokens=8)`; all are ended with the test, their output is shown."""
    apps: list[RunningApp] = []
    with ExitStack() as stack:

        def start(**settings: object) -> RunningApp:
            apps.append(stack.enter_context(running_app(tmp_path, **settings)))  # type: ignore[arg-type]
            return apps[-1]

        yield start
    for app in apps:
        print(f"--- {app.url} said:\n{app.output()}")
