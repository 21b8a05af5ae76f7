"""Which browser the page's tests take: the lightest that is there."""

from pathlib import Path

import pytest

from tests.browser import chromium


class Playwright:
    """With the folder in which the real one keeps its browsers."""

    def __init__(self, folder: Path) -> None:
        self.chromium = self
        self.executable_path = str(folder / "chromium-7" / "chrome-linux64" / "chrome")

    def __enter__(self) -> "Playwright":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_playwrights_headless_shell_comes_before_its_whole_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chromium, "NAMES", ())
    monkeypatch.setattr(chromium, "sync_playwright", lambda: Playwright(tmp_path))
    assert chromium._installed() is None
    whole = tmp_path / "chromium-7" / "chrome-linux64" / "chrome"
    shell = tmp_path / "chromium_headless_shell-7" / "chrome-linux64" / "headless_shell"
    for path in (whole, shell):
        path.parent.mkdir(parents=True)
        path.touch()
        assert chromium._installed() == path
