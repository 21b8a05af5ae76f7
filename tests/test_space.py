"""A Space: what its front matter may say, and that `app.py` comes up by a Space's environment alone."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.browser.server import ROOT, free_port

COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
KEYS = {
    "title": str,
    "emoji": str,
    "colorFrom": str,
    "colorTo": str,
    "sdk": str,
    "sdk_version": str,
    "python_version": str,
    "app_file": str,
    "pinned": bool,
    "license": str,
    "short_description": str,
    "suggested_hardware": str,
    "models": list,
    "preload_from_hub": list,
    "hf_oauth": bool,
}
START_S = 150.0


@pytest.fixture(scope="module")
def front() -> dict[str, Any]:
    front: dict[str, Any] = yaml.safe_load((ROOT / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    return front


def test_the_front_matter_has_only_keys_that_spaces_know_each_of_its_kind(front: dict[str, Any]) -> None:
    """A misspelt key is ignored there without a word; a version that YAML takes for a number loses its zero."""
    assert {name: type(value) for name, value in front.items()} == {name: KEYS[name] for name in front}
    assert {front["colorFrom"], front["colorTo"]} <= COLORS
    assert front["sdk"] == "gradio"
    assert re.fullmatch(r"\d+\.\d+\.\d+", front["sdk_version"])
    assert front["suggested_hardware"] == "cpu-basic"
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", name) for name in front["models"])


def test_the_guide_names_the_keys_that_are_checked() -> None:
    told = (ROOT / "docs" / "space.md").read_text(encoding="utf-8")
    section = told.split("## The front matter\n")[1]
    assert set(re.findall(r"`(\w+)`", section)) - {"py"} >= KEYS.keys()


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`python app.py` as a Space's container runs it: no flags. Its address."""
    port = free_port()
    log = tmp_path_factory.mktemp("space") / "log"
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("STREAMING_", "GRADIO_"))}
    container = {
        "SYSTEM": "spaces",
        "SPACE_ID": "owner/streaming",
        "SPACE_HOST": "owner-streaming.hf.space",
        "SPACE_AUTHOR_NAME": "owner",
        "SPACE_REPO_NAME": "streaming",
        "GRADIO_SERVER_NAME": "0.0.0.0",
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "STREAMING_ENGINE": "scripted",
        "XDG_DATA_HOME": str(log.parent),  # an empty home
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "app.py"], cwd=ROOT, env=clean | container, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_up(url, process, log)
            yield url
        finally:
            process.kill()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"The app is not up:\n{log.read_text(errors='replace')}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)


def test_it_comes_up_by_its_environment_alone(space: str) -> None:
    assert httpx.get(f"{space}/health").json()["model"] == "scripted"
    page = httpx.get(space, headers={"Host": "owner-streaming.hf.space"})
    assert page.status_code == 200
    assert "gradio" in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "frame-ancestors" not in policy, "the Hub shows it within its own page"
    assert "connect-src 'self' https://huggingface.co;" in policy, "Gradio's page asks there how the Space is"
    assert "Sign in with" not in page.text, "the front matter has to ask for it"


def test_it_has_no_api_without_a_key(space: str) -> None:
    refused = httpx.get(f"{space}/v1/models", headers={"Host": "owner-streaming.hf.space"})
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "api_off"
