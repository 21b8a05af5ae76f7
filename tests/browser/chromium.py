"""Finds a browser or brings one: system Chromium, else Debian's package, else Playwright's own. Scripts import it too.

`provide` may install and take minutes; `launched` is quick. Threading: Playwright's sync API stays on one thread.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
"""The shell has no window around the page to compute: it opens a tab at two thirds of the whole browser's cost."""
PACKAGES = ("chromium-headless-shell", "fonts-inter", "fonts-noto-color-emoji", "fonts-noto-cjk")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class NoBrowser(Exception):
    """Every way to a browser failed; the message says how each one did."""


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless Chromium. Raises NoBrowser."""
    path = provide()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


def provide() -> Path:
    """Where the browser is, installing one if need be: one process does, the others wait. Raises NoBrowser."""
    if found := _installed():
        return found
    with FileLock(Path(tempfile.gettempdir()) / "streaming-tests-browser.lock"):
        return _installed() or _install()


def _install() -> Path:
    failures = []
    for name, commands in _ways_to_install():
        print(f"No browser yet: installing {name} ...", file=sys.stderr, flush=True)
        failure = _run_all(commands)
        if found := _installed():
            return found
        failures.append(f"- {name}: {failure or 'installed, and then not found'}")
    raise NoBrowser("\n".join(["The browser tests need Chromium, and no way to it worked:", *failures]))


def _installed() -> Path | None:
    for name in NAMES:
        path = shutil.which(name)
        # Ubuntu's is a stub that only says how to install a snap.
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return Path(path)
    with sync_playwright() as playwright:
        whole = Path(playwright.chromium.executable_path)
    return next((own for own in (*_shells_beside(whole), whole) if own.exists()), None)


def _shells_beside(whole: Path) -> Iterator[Path]:
    """Playwright keeps its headless shell in a folder of the same number beside the whole browser's."""
    for folder in whole.parents:
        if folder.name.startswith("chromium-"):
            yield from folder.with_name(folder.name.replace("chromium-", "chromium_headless_shell-")).glob(
                "*/*headless*shell*"
            )


def _ways_to_install() -> Iterator[tuple[str, list[list[str]]]]:
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if is_root and shutil.which("apt-get"):
        yield (
            "Debian's package",
            [["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]],
        )
    playwright = [sys.executable, "-m", "playwright", "install"]
    if is_root:
        yield "Playwright's Chromium with its libraries", [[*playwright, "--with-deps", "--only-shell", "chromium"]]
    yield "Playwright's Chromium", [[*playwright, "--only-shell", "chromium"]]


def _run_all(commands: list[list[str]]) -> str:
    """Run them until one fails; returns the end of what that one said."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`{' '.join(command)}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
    return ""
