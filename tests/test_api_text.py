"""POST /v1/completions: a text goes on as it stands, whole and in pieces, and what cannot be done is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from transformers import AutoModelForCausalLM

from streaming.api import routes
from streaming.config import Config
from streaming.engines import Engine
from streaming.engines.local import LocalEngine
from streaming.engines.script import Fail, Say
from streaming.engines.scripted import ScriptedEngine
from tests.asgi import Client, client_of, events
from tests.tiny import tiny_folder
from tests.tokenizers import byte_level_bpe

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    engine = LocalEngine(Config(model=str(tiny_folder(tmp_path_factory.mktemp("tiny")))))
    assert engine.wait_ready(60).state == "ready"
    yield engine
    engine.close()


@pytest.fixture
def client(tiny: LocalEngine) -> Iterator[Client]:
    with client_of(app_of(tiny)) as client:
        yield client


def app_of(engine: Engine) -> FastAPI:
    return FastAPI(routes=routes(engine))


def ask(client: Client, prompt: Any = "Once upon a time", **fields: Any) -> Any:
    answer = client.send("POST", PATH, {"prompt": prompt, "temperature": 0} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_goes_on_as_the_model_alone_would(client: Client, tmp_path: Path) -> None:
    """The plain pattern of the library, on the same random weights: no template, no special token of a chat."""
    tokenizer = byte_level_bpe()
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder(tmp_path))
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=16)[0, inputs["input_ids"].shape[1] :]
    body = ask(client)
    assert body["choices"][0]["text"] == tokenizer.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert (body["object"], body["choices"][0]["index"], body["choices"][0]["logprobs"]) == ("text_completion", 0, None)
    assert body["usage"]["prompt_tokens"] == inputs["input_ids"].shape[1]
    assert body["usage"]["completion_tokens"] == 16, "OpenAI's default"
    assert body["choices"][0]["finish_reason"] == "length"


def test_the_pieces_are_the_whole(client: Client) -> None:
    whole = ask(client, max_tokens=24, echo=True)
    answer = client.send(
        "POST",
        PATH,
        {
            "prompt": ["Once upon a time"],
            "temperature": 0,
            "max_tokens": 24,
            "echo": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, last, done = events(answer.text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in chunks)
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_echo_puts_the_prompt_before_what_is_new(client: Client) -> None:
    plain, echoed = ask(client)["choices"][0]["text"], ask(client, echo=True)["choices"][0]["text"]
    assert echoed == "Once upon a time" + plain


def test_a_second_time_the_prompt_is_known(client: Client) -> None:
    prompt = "A long story of a dragon and a knight, told by the fire. " * 6
    ask(client, prompt, max_tokens=2)
    usage = ask(client, prompt, max_tokens=2)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_stop_seed_and_limit_are_as_in_a_chat(client: Client) -> None:
    text = ask(client, max_tokens=24)["choices"][0]["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = ask(client, max_tokens=24, stop=stop)["choices"][0]
    assert stopped["text"] == text[: text.index(stop)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    drawn = [ask(client, temperature=1.5, seed=7, max_tokens=12)["choices"][0]["text"] for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "nothing to go on from"),
        ({"prompt": []}, "prompt", "must be a text"),
        ({"prompt": [1, 2, 3]}, "prompt", "token ids are not read"),
        ({"prompt": [[1, 2]]}, "prompt", "token ids are not read"),
        ({"prompt": ["a", "b"]}, "prompt", "a request for each"),
        ({"prompt": None}, "prompt", "must be a text"),
        ({"prompt": "a\ud800"}, "prompt[0]", "half a character"),
        ({"suffix": "the end"}, "suffix", "filled in"),
        ({"n": 2}, "n", "one answer"),
        ({"best_of": 3}, "best_of", "one answer"),
        ({"logprobs": 5}, "logprobs", "not supported"),
        ({"max_tokens": 0}, "max_tokens", "not valid"),
        ({"stop": [""]}, "stop[0]", "not valid"),
        ({"max_tokns": 3}, "max_tokns", "Did you mean max_tokens?"),
        ({"messages": []}, "messages", "There is no field"),
        ({"prompt": "word " * 4000}, "messages", "too long"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_done_is_refused_by_name(client: Client, fields: dict[str, Any], param: str, words: str) -> None:
    answer = client.send("POST", PATH, {"prompt": "Once"} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_a_prompt_that_is_missing_is_asked_for(client: Client) -> None:
    answer = client.send("POST", PATH, {"max_tokens": 3})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_an_error_in_the_middle_is_an_event_and_then_the_end() -> None:
    engine = ScriptedEngine(lambda _: (Say('He said "no"\nand'), Fail("it broke")))
    try:
        assert engine.wait_ready(30).state == "ready"
        with client_of(app_of(engine)) as client:
            *pieces, error = events(client.send("POST", PATH, {"prompt": "Once", "stream": True}).text)
    finally:
        engine.close()
    assert "".join(piece["choices"][0]["text"] for piece in pieces).startswith('He said "no"')
    assert error["error"]["code"] == "generation_failed"
