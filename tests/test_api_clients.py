"""The API as its clients meet it: the real app in a process of its own, OpenAI's client, curl, and a fuzzer."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.asgi import CHAT, events
from tests.browser.server import ROOT, RunningApp, running_app

KEY = "a-key"
TEXT = 'He said: "one"\ntwo three'


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """On the scripted engine, which obeys what is written in the message."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "secret.txt").write_text("a secret")
    opened = {"GRADIO_ALLOWED_PATHS": str(folder)}
    with running_app(folder, environment=opened, api_key=KEY, cors_origin="https://example.org") as app:
        _wait_ready(app)
        yield app


@pytest.fixture
def client(app: RunningApp) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{app.url}/v1", api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def _wait_ready(app: RunningApp, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while httpx.get(f"{app.url}/health").status_code != 200:
        assert time.monotonic() < deadline, app.output()
        time.sleep(0.1)


def _wait_idle(app: RunningApp) -> None:
    deadline = time.monotonic() + 30
    while (health := httpx.get(f"{app.url}/health").json())["running"] or health["waiting"]:
        assert time.monotonic() < deadline, f"nobody reads, and it goes on: {health}"
        time.sleep(0.02)


def say(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": f"/pace 500\n/text\n{text}"}]


def order(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_openai_asks_for_a_whole_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=say(TEXT), seed=1, temperature=0.5)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_openai_streams(client: OpenAI) -> None:
    with client.chat.completions.create(
        model="scripted",
        messages=order("/think 0.1\n/say 9 tokens at 100 tok/s"),
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "one two three four five six seven eight nine "
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas).startswith("The question")
    assert len(deltas) > 9
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_openai_has_a_text_gone_on_with(client: OpenAI) -> None:
    whole = client.completions.create(model="scripted", prompt=TEXT, echo=True)
    stream = client.completions.create(model="scripted", prompt=TEXT, echo=True, stream=True)
    text = whole.choices[0].text
    assert text.startswith(TEXT)
    assert len(text) > len(TEXT)
    assert "".join(chunk.choices[0].text for chunk in stream) == text
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0


def test_openai_names_the_fields_of_others_as_extra(client: OpenAI) -> None:
    extra = {"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
    answer = client.chat.completions.create(
        model="scripted", messages=order("/think 1\n/say 2 tokens at 500 tok/s"), extra_body=extra
    )
    assert answer.choices[0].message.content == "one two "
    assert not hasattr(answer.choices[0].message, "reasoning_content")


def test_openai_lists_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").object == "model"


def test_openai_raises_what_it_should(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        client.chat.completions.create(model="scripted", messages=say("x"), temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="n can only be 1"):
        client.chat.completions.create(model="scripted", messages=say("x"), n=2)
    with pytest.raises(openai.NotFoundError, match="gpt-x"):
        client.chat.completions.create(model="gpt-x", messages=say("x"))
    with pytest.raises(openai.BadRequestError, match="filled in"):
        client.completions.create(model="scripted", prompt="Once", suffix="again")
    with pytest.raises(openai.AuthenticationError, match="not the server's API key"):
        client.with_options(api_key="another").models.list()
    with pytest.raises(openai.InternalServerError, match="the script says so"):
        client.chat.completions.create(model="scripted", messages=order("/fail after 3\n/pace 500"))


def test_openai_raises_an_error_in_the_middle_of_a_stream(client: OpenAI) -> None:
    said: list[str] = []
    stream = client.chat.completions.create(model="scripted", messages=order("/pace 500\n/fail after 3"), stream=True)
    with stream, pytest.raises(openai.APIError, match="the script says so") as failed:
        said.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert failed.value.code == "generation_failed"


def test_openai_leaves_in_the_middle(client: OpenAI, app: RunningApp) -> None:
    """gradio 4016, llama.cpp 11720; tabbyAPI 428: three more are answered after that, and the server is well."""
    stream = client.chat.completions.create(
        model="scripted", messages=order("/say 100000 tokens at 100 tok/s"), max_tokens=8000, stream=True
    )
    with stream:
        next(stream)
    _wait_idle(app)
    for _ in range(3):
        assert client.chat.completions.create(model="scripted", messages=say("So.")).choices[0].message.content == "So."
    assert httpx.get(f"{app.url}/health").json()["status"] == "ok"


def test_ctrl_c_tells_an_open_stream_and_ends_the_app(tmp_path: Path) -> None:
    """The server waits for its clients to leave: whoever is being answered has to be told first."""
    with running_app(tmp_path, api_key=KEY) as ending:
        _wait_ready(ending)
        client = OpenAI(base_url=f"{ending.url}/v1", api_key=KEY, max_retries=0)
        stream = client.chat.completions.create(
            model="scripted", messages=order("/say 100000 tokens at 100 tok/s"), max_tokens=8000, stream=True
        )
        assert next(chunk for chunk in stream if chunk.choices[0].delta.content), "before that it might still wait"
        ending.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="stopped at the server"):
            list(stream)
        assert ending.process.wait(timeout=60) == 0
        assert "Traceback" not in ending.output()


def test_openai_runs_out_of_patience_with_a_whole_answer(client: OpenAI, app: RunningApp) -> None:
    hasty = client.with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        hasty.chat.completions.create(model="scripted", messages=order("/wait 600"))
    _wait_idle(app)


def curl(app: RunningApp, body: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("curl")
    assert program, "this test is about curl: install it"
    command = [program, "-sS", "-N", f"{app.url}{CHAT}", "-H", "Content-Type: application/json", *options]
    return subprocess.run(
        [*command, "-H", f"Authorization: Bearer {KEY}", "-d", json.dumps(body)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_curl_reads_a_stream(app: RunningApp) -> None:
    done = curl(app, {"messages": say(TEXT), "stream": True})
    *chunks, end = events(done.stdout)
    assert end == "[DONE]"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT


def test_curl_gets_the_first_words_long_before_the_last(app: RunningApp) -> None:
    """A proxy or a middleware that collects the response makes a stream a long silence and one lump."""
    done = curl(app, {"messages": order("/say 1000 tokens at 20 tok/s"), "stream": True}, "--max-time", "3")
    assert done.returncode == 28  # curl's own time is up
    assert '"content":"one "' in done.stdout
    assert "[DONE]" not in done.stdout
    _wait_idle(app)


def test_browsers_ask_the_app_and_not_gradio(app: RunningApp) -> None:
    """Gradio answers preflights for every route, and lets in whom it likes; the API goes by --cors-origin alone."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, allowed in (("https://example.org", True), ("http://localhost:3000", False)):
        answer = httpx.options(f"{app.url}{CHAT}", headers={"Origin": origin} | asked)
        assert (answer.headers.get("Access-Control-Allow-Origin") == origin) == allowed


def test_no_file_is_opened_by_the_environment(app: RunningApp) -> None:
    """Gradio takes the folders that anybody may read from GRADIO_ALLOWED_PATHS, where the app names none itself."""
    secret = app.log.parent / "secret.txt"
    refused = httpx.get(f"{app.url}/gradio_api/file={secret}")
    assert refused.status_code == 403
    assert secret.read_text() not in refused.text
    assert httpx.get(f"{app.url}/gradio_api/file={ROOT / 'assets' / 'favicon.png'}").status_code == 200


def test_the_pages_requests_are_counted_with_the_others(app: RunningApp, client: OpenAI) -> None:
    def generated() -> float:
        text = httpx.get(f"{app.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
        (line,) = [line for line in text.splitlines() if line.startswith("streaming_generated_tokens_total ")]
        return float(line.split()[1])

    before = generated()
    client.chat.completions.create(model="scripted", messages=say("one two three"))
    assert generated() - before == 3


def test_a_fuzzer_finds_nothing(tmp_path: Path) -> None:
    """Every boundary of the schema, and what lies beyond; random requests, valid and invalid."""
    with running_app(tmp_path, api_key=KEY, max_new_tokens=2) as quick:
        _wait_ready(quick)
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{quick.url}/v1/openapi.json", "--no-color"]
        limits = ["--seed", "1", "--max-examples", "8", "--generation-database", "none"]
        done = subprocess.run(
            [*command, *limits, "-H", f"Authorization: Bearer {KEY}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=160,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Operations:       4 selected / 4 total" in done.stdout


def test_the_starter_model_answers_over_http(starter_folder: Path, tmp_path: Path) -> None:
    with running_app(tmp_path, engine="local", model=starter_folder) as app:
        _wait_ready(app)
        ask = {"messages": order("Name a colour."), "max_tokens": 8, "seed": 7, "temperature": 1.0}
        answers = [httpx.post(f"{app.url}{CHAT}", json=ask, timeout=60).json() for _ in range(2)]
        streamed = events(httpx.post(f"{app.url}{CHAT}", json=ask | {"stream": True}, timeout=60).text)
    first, second = (answer["choices"][0]["message"]["content"] for answer in answers)
    assert first
    assert first == second
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed[:-1]) == first
    assert answers[0]["usage"]["prompt_tokens"] > 5
