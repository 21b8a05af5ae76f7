"""The browser and the app that the other browser tests stand on: they come up, and where not, it is said why."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests.browser import chromium as bringing
from tests.browser.conftest import ServeApp
from tests.browser.server import ROOT, free_port, running_app

pytestmark = pytest.mark.browser


def test_the_browser_is_a_real_one(chromium: Browser) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.set_content("<p id=there></p><script>there.textContent = [1, 2].map(n => n * 2)</script>")
        assert page.text_content("#there") == "2,4"


def test_the_app_comes_up_and_tells_of_its_engine(serve_app: ServeApp) -> None:
    app = serve_app(max_new_tokens=8)
    health = httpx.get(f"{app.url}/health")
    assert health.status_code == 200
    assert health.json()["state"] == "ready"


def test_an_app_that_ends_at_once_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="--port is 99999"), running_app(tmp_path, port=99999):
        pytest.fail("it should not have come up")


def test_a_port_that_is_taken_is_said_to_be(serve_app: ServeApp) -> None:
    port = int(serve_app().url.rpartition(":")[2])
    command = [sys.executable, "app.py", "--engine", "scripted", "--no-history", "--port", str(port)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert f"Port {port} of 127.0.0.1 cannot be had" in second.stderr
    assert "Traceback" not in second.stderr


def test_without_any_browser_the_tests_fail_and_name_every_way_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a silent skip: a page that nobody looked at is not tested."""
    monkeypatch.setattr(bringing, "_installed", lambda: None)
    monkeypatch.setattr(bringing, "_run_all", lambda _: "no network")
    monkeypatch.setattr(bringing.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bringing.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(bringing.NoBrowser) as refused:
        bringing.provide()
    assert str(refused.value).splitlines()[1:] == [
        "- Debian's package: no network",
        "- Playwright's Chromium with its libraries: no network",
        "- Playwright's Chromium: no network",
    ]


def test_a_browser_that_only_installs_is_found_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Path] = []
    monkeypatch.setattr(bringing, "_installed", lambda: installed[0] if installed else None)
    monkeypatch.setattr(bringing, "_run_all", lambda _: installed.append(Path("/new/chromium")) or "")
    assert bringing.provide() == Path("/new/chromium")


def test_an_installer_that_fails_is_quoted() -> None:
    said = bringing._run_all([["true"], ["sh", "-c", "echo no room >&2; exit 3"], ["false"]])
    assert said == "`sh -c echo no room >&2; exit 3` ended with 3: no room"


def test_free_ports_differ() -> None:
    assert len({free_port() for _ in range(5)}) > 1
