"""The remote engine and servers: what is asked of them, what they do wrong, and how it goes on when one has gone.

Tests of `any_server` run against any, by STREAMING_TEST_BASE_URL and `-k server`; without it against our own.
"""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from streaming.api import MeteredEngine, Metrics
from streaming.config import Config
from streaming.engines.base import Generation, Item, Status
from streaming.engines.local import LocalEngine
from streaming.engines.remote import RemoteEngine
from streaming.engines.script import Hold, Say
from streaming.engines.scripted import ScriptedEngine
from streaming.engines.server import Patience, Server
from streaming.errors import (
    ContextTooLong,
    EngineBusy,
    EngineClosed,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
    ServerRefused,
    ServerUnavailable,
    StreamingError,
    WrongModel,
)
from streaming.events import Finished, Queued, TextDelta, Usage
from streaming.messages import Beam, Message, Sampling
from tests.browser.server import ROOT, free_port
from tests.fake_server import FakeServer, chunk
from tests.serving import Served, scripted_server, serve_engine
from tests.worlds import TIMEOUT_S, Gate, Reader, Report, ask, cancel_at, nothing

USAGE = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE = [chunk("one "), chunk("two"), chunk(finish="stop", usage=USAGE)]
Serve = Callable[..., RemoteEngine]


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer([WHOLE])


@pytest.fixture
def remote(fake: FakeServer) -> Iterator[Serve]:
    """Makes engines of the fake server."""
    served = Served(fake.app())
    engines: list[RemoteEngine] = []

    def make(**settings: Any) -> RemoteEngine:
        engines.append(RemoteEngine(f"{served.url}/v1", **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
    served.close()


def wait_for(engine: RemoteEngine, state: str) -> Status:
    deadline = time.monotonic() + TIMEOUT_S
    while (status := engine.status()).state != state:
        assert time.monotonic() < deadline, status
        time.sleep(0.01)
    return status


# -- what is asked of a server


def test_only_what_is_set_is_sent(remote: Serve, fake: FakeServer) -> None:
    """Servers refuse fields of others, whatever their value (transformers serve: 422 for top_k)."""
    engine = remote(max_new_tokens=33)
    ask(engine, "Hello", Sampling()).wait()
    everything = Sampling(
        max_new_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        repetition_penalty=1.1,
        stop=("END",),
        seed=3,
        chat_template_kwargs={"enable_thinking": False},
    )
    ask(engine, "Hello", everything).wait()
    common = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    common |= {"stream_options": {"include_usage": True}}
    assert fake.asked[0] == common | {"max_tokens": 33}
    assert fake.asked[1] == common | {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "stop": ["END"],
        "seed": 3,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_an_answer_goes_on_where_it_was_cut(remote: Serve, fake: FakeServer) -> None:
    """In the middle of a text nothing opens a block of thought, and white space is part of it."""
    fake.answers[:] = [[chunk(" <think>"), chunk(" two"), chunk(finish="stop")]]
    messages = [Message("user", "Hello"), Message("assistant", "one")]
    reader = Reader(remote().stream(messages, continues=True), nothing).wait()
    assert (reader.text, reader.reasoning) == (" <think> two", "")
    assert fake.asked[0]["messages"][-1] == {"role": "assistant", "content": "one"}
    assert (fake.asked[0]["add_generation_prompt"], fake.asked[0]["continue_final_message"]) == (False, True)


def test_what_has_not_begun_is_answered_and_what_cannot_go_on_is_refused(remote: Serve, fake: FakeServer) -> None:
    engine, hello = remote(), Message("user", "Hello")
    assert Reader(engine.stream([hello, Message("assistant", "")], continues=True), nothing).wait().text == "one two"
    assert (len(fake.asked[0]["messages"]), "continue_final_message" in fake.asked[0]) == (1, False)
    with pytest.raises(InvalidRequest, match="middle of reasoning"):
        engine.stream([hello, Message("assistant", "", "hm")], continues=True)
    with pytest.raises(InvalidRequest, match="last message is the user's"):
        engine.stream([hello], continues=True)


def test_a_text_is_sent_as_it_stands(remote: Serve, fake: FakeServer) -> None:
    last = {"index": 0, "text": " time", "finish_reason": "length"}
    fake.answers[:] = [[{"choices": [{"index": 0, "text": " upon a", "finish_reason": None}]}, {"choices": [last]}]]
    engine = remote()
    reader = Reader(engine.stream("Once", Sampling(max_new_tokens=3)), nothing).wait()
    assert (reader.text, reader.finished.reason) == (" upon a time", "length")
    assert (fake.asked[0]["prompt"], "messages" in fake.asked[0]) == ("Once", False)
    with pytest.raises(InvalidRequest, match="empty"):
        engine.stream("")


def test_a_server_without_usage_is_asked_again_without_it(remote: Serve, fake: FakeServer) -> None:
    refused = JSONResponse({"error": {"message": "stream_options is not supported"}}, 400)
    fake.answers[:] = [refused, [chunk("one "), chunk("two"), chunk(finish="length")]]
    engine = remote()
    readers = [ask(engine, "Hello").wait() for _ in range(2)]
    assert ["stream_options" in request for request in fake.asked] == [True, False, False]
    assert [(reader.text, reader.finished.reason) for reader in readers] == [("one two", "length")] * 2
    assert readers[0].finished.usage == Usage(completion_tokens=2)  # as many as pieces: nobody tells better


def test_keys_of_others_are_not_sent(remote: Serve, fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes OPENAI_API_KEY from the environment if it is given none, for whatever server it talks to."""
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "s3cret")
    remote().wait_ready(TIMEOUT_S)
    assert "authorization" not in fake.headers[0]
    assert "s3cret" not in str(fake.headers[0])
    remote(api_key="ours").wait_ready(TIMEOUT_S)
    assert fake.headers[-1]["authorization"] == "Bearer ours"


# -- which model


def test_the_first_model_is_taken_and_all_are_listed(remote: Serve, fake: FakeServer) -> None:
    fake.models["data"] += [{"id": "org/big", "object": "model", "max_model_len": 4096}]
    engine = remote()
    assert engine.wait_ready(TIMEOUT_S).model == "m"
    assert engine.models() == MeteredEngine(engine, Metrics()).models() == ("m", "org/big")
    local = LocalEngine(Config(model="org/name"))  # never started: nothing is loaded
    assert MeteredEngine(local, Metrics()).models() == ()
    named = remote(model="org/big").wait_ready(TIMEOUT_S)
    assert (named.model, named.context_tokens, named.notices) == ("org/big", 4096, ())


def test_a_model_that_is_not_listed_is_asked_for_all_the_same(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [JSONResponse({"error": {"message": "no", "code": "model_not_found"}}, 404), WHOLE]
    engine = remote(model="alias")
    assert "does not list alias" in engine.wait_ready(TIMEOUT_S).notices[0]
    assert isinstance(ask(engine, "Hello").wait().error, ModelNotFound)
    assert ask(engine, "Hello").wait().text == "one two"
    assert fake.asked[-1]["model"] == "alias"


def test_a_server_without_a_model(remote: Serve, fake: FakeServer) -> None:
    fake.models = {"object": "list", "data": []}
    engine = remote(wait_s=0)
    assert "name one with --model" in wait_for(engine_started(engine), "failed").detail
    fake.models = {"object": "list", "data": [{"id": "late", "object": "model"}]}
    assert wait_for(engine, "ready").model == "late"


def engine_started(engine: RemoteEngine) -> RemoteEngine:
    engine.start()
    return engine


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (JSONResponse({"error": {"message": "wrong key"}}, 401), "wants a key.*wrong key"),
        (JSONResponse({"detail": "Not Found"}, 404), "is --base-url right"),
        (PlainTextResponse("<html>A page</html>", media_type="text/html"), "is --base-url right"),
        (JSONResponse(["odd"]), "is --base-url right"),
        (JSONResponse({"object": "list", "data": [{"id": 7}]}), "is --base-url right"),
        (JSONResponse({"object": "list", "data": "odd"}), "is --base-url right"),
    ],
)
def test_what_is_no_server_of_this_kind_is_told_at_once(
    remote: Serve, fake: FakeServer, models: Any, words: str
) -> None:
    fake.models = models
    engine = remote()
    status = engine.wait_ready(TIMEOUT_S)
    assert status.state == "failed"
    with pytest.raises(ServerRefused, match=words):
        raise ask(engine, "Hello").wait().error


# -- what comes back


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_that_comes_apart(remote: Serve, fake: FakeServer, name: str) -> None:
    fake.answers[:] = [
        [chunk(**{name: "\nLet me"}), chunk(**{name: " see.\n"}), chunk("\n\nSo."), chunk(finish="stop")]
    ]
    reader = ask(remote(), "Hello").wait()
    assert (reader.reasoning, reader.text) == ("Let me see.", "So.")


def test_reasoning_within_the_text(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [[chunk("<th"), chunk("ink>\nLet me see.\n</thi"), chunk("nk>\n\nSo."), chunk(finish="stop")]]
    reader = ask(remote(), "Hello").wait()
    assert (reader.reasoning, reader.text) == ("Let me see.", "So.")


def test_usage_is_the_servers(remote: Serve) -> None:
    finished = ask(remote(), "Hello").wait().finished
    assert finished.usage == Usage(prompt_tokens=7, cached_tokens=4, completion_tokens=9)
    assert (finished.reason, finished.stopped_by) == ("stop", None)


def test_a_server_that_goes_on_after_a_stop_string_is_hung_up_on(remote: Serve, fake: FakeServer) -> None:
    endless = [chunk("one EN"), chunk("D two"), *[item for _ in range(500) for item in (0.01, chunk("more "))]]
    fake.answers[:] = [endless]
    reader = ask(remote(), "Hello", Sampling(stop=("END",))).wait()
    assert (reader.text, reader.finished.reason, reader.finished.stopped_by) == ("one ", "stop", "END")
    assert hung_up(fake)


def test_a_server_that_obeys_a_stop_string_tells_the_usage(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [[chunk("one END"), chunk(finish="stop"), {**chunk(usage=USAGE), "choices": []}]]
    finished = ask(remote(), "Hello", Sampling(stop=("END",))).wait().finished
    assert (finished.stopped_by, finished.usage.completion_tokens) == ("END", 9)


def test_a_server_that_names_the_stop_string(remote: Serve, fake: FakeServer) -> None:
    last = chunk(finish="stop")
    last["choices"][0]["stop_reason"] = "END"
    fake.answers[:] = [[chunk("one "), last]]
    assert ask(remote(), "Hello", Sampling(stop=("END",))).wait().finished.stopped_by == "END"


def test_a_cancel_closes_the_connection(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [[chunk("one "), 60.0, chunk("two")], WHOLE]
    engine = remote()
    reader = ask(engine, "Hello", hook=cancel_at(TextDelta)).wait()
    assert (reader.text, reader.finished.reason) == ("one ", "cancelled")
    assert hung_up(fake)
    assert ask(engine, "Hello").wait().text == "one two"


def test_hanging_up_leaves_nothing_to_the_collector(fake: FakeServer) -> None:
    """It may run in another thread, and meet a generator that its own is closing: "already executing"."""
    fake.answers[:] = [[chunk("one "), chunk("two "), 60.0, chunk("three")]]
    served, lost = Served(fake.app()), []

    async def leave() -> None:
        sys.set_asyncgen_hooks(finalizer=lambda generator: lost.append(generator.__qualname__))
        async with Server(f"{served.url}/v1") as server:
            pieces = server.answer("any", [Message("user", "Hello")], Sampling(), 9)
            while not (await anext(pieces)).text:
                pass
            await pieces.aclose()
            gc.collect()

    asyncio.run(leave())
    served.close()
    assert lost == []


def test_a_cancel_before_the_server_has_said_a_word(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [[60.0]]
    engine = remote()
    reader = ask(engine, "Hello")
    deadline = time.monotonic() + TIMEOUT_S
    while not fake.asked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reader.generation.cancel()
    assert reader.wait().finished.reason == "cancelled"
    assert hung_up(fake)


def hung_up(fake: FakeServer) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while not fake.left:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


# -- what goes wrong


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ([chunk("one "), {"error": {"message": "CUDA error"}}], GenerationFailed, "CUDA error"),
        ([chunk("one "), {"error": "CUDA error"}], GenerationFailed, "CUDA error"),
        ([chunk("one "), "data: {half\n\n"], GenerationFailed, "not in OpenAI's form"),
        ([chunk("one "), chunk(content=7)], GenerationFailed, "not in OpenAI's form"),
        ([chunk("one "), ["odd"]], GenerationFailed, "not in OpenAI's form"),
        ([chunk("one "), {"choices": "odd"}], GenerationFailed, "not in OpenAI's form"),
        ([chunk("one "), chunk(finish="content_filter")], GenerationFailed, "broke this answer off: content_filter"),
        ([chunk("one ")], GenerationFailed, "ended in the middle"),
        ([chunk("one "), 60.0], GenerationFailed, "silent in the middle"),
    ],
)
def test_what_was_said_stays_and_why_it_ended_is_told(
    remote: Serve, fake: FakeServer, answer: Any, kind: type[StreamingError], words: str
) -> None:
    fake.answers[:] = [answer, WHOLE]
    engine = remote(patience=Patience(next_s=0.5))
    reader = ask(engine, "Hello").wait()
    assert reader.text == "one "
    with pytest.raises(kind, match=words):
        raise reader.error
    assert ask(engine, "Hello").wait().text == "one two"


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (401, ServerRefused), (429, EngineBusy), (500, GenerationFailed)]
)
def test_a_refusal_is_not_tried_again(remote: Serve, fake: FakeServer, status: int, kind: type[StreamingError]) -> None:
    fake.answers[:] = [JSONResponse({"error": {"message": "no"}}, status), WHOLE]
    engine = remote()
    assert type(ask(engine, "Hello").wait().error) is kind
    assert len(fake.asked) == 1
    assert ask(engine, "Hello").wait().text == "one two"


def test_a_server_that_cannot_answer_now_is_tried_again(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [JSONResponse({"error": {"message": "still loading"}}, 503), WHOLE]
    reader = ask(remote(), "Hello").wait()
    assert reader.text == "one two"
    assert any("still loading" in item.detail for item in reader.items if isinstance(item, Queued))


def test_it_is_not_tried_for_ever(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [JSONResponse({"error": {"message": "still loading"}}, 503)]
    assert isinstance(ask(remote(), "Hello").wait().error, ServerUnavailable)
    assert len(fake.asked) == 3


def test_a_server_that_does_not_begin(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [[60.0]]
    error = ask(remote(patience=Patience(first_s=0.3)), "Hello").wait().error
    assert isinstance(error, GenerationFailed)
    assert "not begun to answer" in str(error)


def test_no_more_at_once_than_there_are_places(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [[chunk("one "), 60.0]]
    engine = remote(max_running=2, max_waiting=1)
    engine.wait_ready(TIMEOUT_S)
    gates = [Gate(), Gate()]
    readers = []
    for gate in gates:  # opened at once: they only tell that an answer has begun
        gate.open()
        readers.append(ask(engine, "Hello", hook=gate, user="ann"))
        gate.wait()
    waiting = ask(engine, "Hello", user="ann")
    assert waiting.positions == [1]
    assert (engine.status().running, engine.status().waiting) == (2, 1)
    with pytest.raises(EngineBusy):
        ask(engine, "Hello", user="ann")
    assert len(fake.asked) == 2
    fake.answers[:] = [WHOLE]
    readers[0].generation.cancel()
    assert waiting.wait().text == "one two"
    assert [reader.positions for reader in readers] == [[], []]


def too_long(prompt: int) -> JSONResponse:
    words = f"This model's maximum context length is 100 tokens and your request has {prompt} input tokens."
    return JSONResponse({"error": {"message": words, "code": 400}}, 400)


def test_a_conversation_that_a_server_does_not_shorten(remote: Serve, fake: FakeServer) -> None:
    """vLLM refuses it, and by default even an answer that could only in the end be too long."""
    fake.answers[:] = [too_long(70), too_long(70), WHOLE]
    messages = [Message("user", "a" * 30), Message("assistant", "b" * 30), Message("user", "c" * 10)]
    reader = Reader(remote().stream(messages, Sampling(max_new_tokens=1000)), nothing).wait()
    assert (reader.text, reader.finished.usage.dropped_messages) == ("one two", 2)
    asked = [(len(request["messages"]), request["max_tokens"]) for request in fake.asked]
    assert asked == [(3, 1000), (1, 50), (1, 30)]


def test_a_message_that_no_shortening_helps(remote: Serve, fake: FakeServer) -> None:
    fake.answers[:] = [too_long(101), WHOLE]
    engine = remote()
    assert isinstance(ask(engine, "word " * 100).wait().error, ContextTooLong)
    assert ask(engine, "Hello").wait().text == "one two"


def test_strategies_are_refused_in_words(remote: Serve) -> None:
    with pytest.raises(InvalidRequest, match="strategies"):
        ask(remote(), "Hello", Sampling(strategy=Beam(num_beams=2)))


# -- another app of this kind


def test_a_conversation_that_our_own_server_shortens() -> None:
    """How many messages it has left out comes through; a single one that is too long is told with both lengths."""
    behind = ScriptedEngine(lambda _: [Say("So.")], context_tokens=40)
    served = serve_engine(behind)
    engine = RemoteEngine(f"{served.url}/v1")
    assert engine.wait_ready(TIMEOUT_S).context_tokens == 40
    history = [message for _ in range(9) for message in (Message("user", "a b c"), Message("assistant", "d e f"))]
    sampling = Sampling(max_new_tokens=8)
    reader = Reader(engine.stream([*history, Message("user", "Hello")], sampling), nothing).wait()
    assert (reader.text, reader.finished.usage.dropped_messages) == ("So.", 8)
    error = ask(engine, "word " * 50).wait().error
    assert isinstance(error, ContextTooLong)
    assert (error.prompt_tokens, error.context_tokens) == (50, 40)
    engine.close()
    served.close()
    behind.close()


def test_a_stop_reaches_the_model_behind() -> None:
    behind = ScriptedEngine(lambda _: [Say("one "), Hold(threading.Event())])
    served = serve_engine(behind)
    engine = RemoteEngine(f"{served.url}/v1")
    assert ask(engine, "Hello", hook=cancel_at(TextDelta)).wait().text == "one "
    deadline = time.monotonic() + TIMEOUT_S
    while behind.status().running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    engine.close()
    served.close()
    behind.close()


def test_the_terminal_talks_to_a_server() -> None:
    port = free_port()
    command = [sys.executable, "-m", "streaming", "chat", "--engine", "remote"]
    with scripted_server(port):
        done = subprocess.run(
            [*command, "--base-url", f"http://127.0.0.1:{port}/v1"],
            cwd=ROOT,
            input="//say 3 tokens at 100 tok/s\n//fail after 1\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.stdout.startswith("one two three \n")
    assert "3 tokens" in done.stderr
    assert "the script says so" in done.stderr
    assert done.returncode == 1


# -- a server that comes and goes


def test_it_waits_for_a_server_that_is_not_up_yet() -> None:
    port = free_port()
    engine = RemoteEngine(f"http://127.0.0.1:{port}/v1", wait_s=TIMEOUT_S)
    early = ask(engine, "/say 2 tokens at 100 tok/s")
    while "cannot be reached" not in engine.status().detail:
        time.sleep(0.01)
    assert engine.status().state == "loading"
    stopped = ask(engine, "Hello")
    stopped.generation.cancel()
    assert stopped.finished.reason == "cancelled"
    with scripted_server(port):
        assert early.wait().text == "one two "
        assert any("cannot be reached" in item.detail for item in early.items if isinstance(item, Queued))
        assert engine.status().state == "ready"
    engine.close()


def test_after_a_while_it_says_no_and_is_well_again_when_the_server_is() -> None:
    port = free_port()
    engine = RemoteEngine(f"http://127.0.0.1:{port}/v1", wait_s=0.2)
    assert isinstance(ask(engine, "Hello").wait().error, ServerUnavailable)
    assert (status := engine.wait_ready(TIMEOUT_S)).state == "failed"
    assert "cannot be reached" in status.detail
    with scripted_server(port):
        wait_for(engine, "ready")
        assert ask(engine, "/say 2 tokens at 100 tok/s").wait().text == "one two "
    engine.close()


def test_a_server_killed_in_the_middle_of_an_answer() -> None:
    """What came stays and is told to be cut; who asks meanwhile waits, and is answered when the server is back."""
    port = free_port()
    engine = RemoteEngine(f"http://127.0.0.1:{port}/v1", wait_s=TIMEOUT_S)
    with scripted_server(port) as server:

        def kill(_: Generation, item: Item) -> None:
            if isinstance(item, TextDelta) and item.tokens == 3:
                server.kill()

        reader = ask(engine, "/say 500 tokens at 20 tok/s", Sampling(), hook=kill).wait()
        server.wait()
    assert reader.text.startswith("one two three ")
    assert isinstance(reader.error, GenerationFailed)
    assert "broke in the middle" in str(reader.error)
    meanwhile = ask(engine, "/say 2 tokens at 100 tok/s")
    with scripted_server(port):
        assert meanwhile.wait().text == "one two "
        assert engine.status().state == "ready"
    engine.close()


# -- any server


@pytest.fixture(scope="module")
def any_server() -> Iterator[RemoteEngine]:
    own = free_port()
    url = os.environ.get("STREAMING_TEST_BASE_URL", f"http://127.0.0.1:{own}/v1")
    with scripted_server(own):
        engine = RemoteEngine(url, os.environ.get("STREAMING_TEST_API_KEY"))
        yield engine
        engine.close()


GREEDY = Sampling(temperature=0, max_new_tokens=24)
QUESTION = "Count from one to twenty in words."


def test_a_server_answers_and_tells_what_it_cost(any_server: RemoteEngine) -> None:
    status = any_server.wait_ready(TIMEOUT_S)
    assert (status.state, status.model in any_server.models()) == ("ready", True)
    reader = ask(any_server, QUESTION, GREEDY).wait()
    assert reader.text or reader.reasoning
    assert reader.finished.reason in ("stop", "length")
    assert reader.finished.usage.prompt_tokens > 0
    assert 0 < reader.finished.usage.completion_tokens <= 24


def test_a_server_is_as_long_as_allowed(any_server: RemoteEngine) -> None:
    finished = ask(any_server, QUESTION, Sampling(temperature=0, max_new_tokens=3)).wait().finished
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 3)


def test_a_server_is_stopped_by_a_string(any_server: RemoteEngine) -> None:
    whole = ask(any_server, QUESTION, GREEDY).wait().text
    stop = whole[len(whole) // 2 :][:4]
    reader = ask(any_server, QUESTION, Sampling(temperature=0, max_new_tokens=24, stop=(stop,))).wait()
    assert reader.text == whole[: whole.index(stop)]
    assert (reader.finished.reason, reader.finished.stopped_by) == ("stop", stop)


def test_a_server_is_left_in_the_middle_and_is_well(any_server: RemoteEngine) -> None:
    whole = ask(any_server, QUESTION, GREEDY).wait().text
    long = Sampling(temperature=0, max_new_tokens=400)
    cut = ask(any_server, QUESTION, long, hook=cancel_at(TextDelta, 3)).wait()
    assert cut.finished.reason == "cancelled"
    assert whole.startswith(cut.text)
    for _ in range(3):
        assert ask(any_server, QUESTION, GREEDY).wait().text == whole


def test_a_server_answers_eight_at_once(any_server: RemoteEngine) -> None:
    questions = [f"Repeat this number: {number}" for number in range(8)]
    alone = [ask(any_server, question, GREEDY).wait() for question in questions]
    together = [ask(any_server, question, GREEDY, user=question) for question in questions]
    assert [reader.wait().finished.usage.completion_tokens for reader in together] == [
        reader.finished.usage.completion_tokens for reader in alone
    ]


def test_a_server_refuses_what_is_too_long_in_words(any_server: RemoteEngine) -> None:
    context = any_server.wait_ready(TIMEOUT_S).context_tokens or 8192
    error = ask(any_server, "word " * 4 * context, GREEDY).wait().error
    assert isinstance(error, InvalidRequest)
    assert "long" in str(error)
    assert ask(any_server, QUESTION, GREEDY).wait().text


# -- another of its models


def test_another_of_the_servers_models_is_asked_from_a_switch_on(remote: Serve, fake: FakeServer) -> None:
    fake.models = {"object": "list", "data": [{"id": "m"}, {"id": "org/big", "max_model_len": 9000}]}
    engine, report = remote(), Report()
    engine.wait_ready(TIMEOUT_S)
    assert ask(engine, "Hi").wait().finished.model == "m"
    engine.switch("org/big", report)
    by_name = engine.stream([Message("user", "Hi")], model="org/big")  # is let in at once
    assert engine.status().model == "org/big"
    assert report.wait() is None
    assert (engine.status().model, engine.status().context_tokens) == ("org/big", 9000)
    *_, last = by_name
    assert isinstance(last, Finished)
    assert last.model == ask(engine, "Hi").wait().finished.model == "org/big"
    assert [asked["model"] for asked in fake.asked] == ["m", "org/big", "org/big"]
    with pytest.raises(WrongModel, match="no model 'm' here"):
        engine.stream([Message("user", "Hi")], model="m")
    assert not engine.call_off()


def test_an_answer_that_has_begun_goes_on_by_the_model_that_began_it(remote: Serve, fake: FakeServer) -> None:
    fake.models = {"object": "list", "data": [{"id": "m"}, {"id": "n"}]}
    engine, gate, report = remote(), Gate(), Report()
    engine.wait_ready(TIMEOUT_S)
    fake.answers = [[chunk("one "), 0.2, chunk("two"), chunk(finish="stop", usage=USAGE)]]
    running = ask(engine, "Hi", hook=gate)
    gate.wait()
    engine.switch("n", report)
    gate.open()
    assert report.wait() is None
    assert (running.wait().text, running.finished.model) == ("one two", "m")


def test_a_model_that_the_server_does_not_list_is_not_switched_to(remote: Serve) -> None:
    engine, report = remote(), Report()
    engine.wait_ready(TIMEOUT_S)
    engine.switch("n", report)
    assert str(report.wait()) == "The server does not list n. It lists m."
    assert engine.status().model == "m"
    engine.close()
    with pytest.raises(EngineClosed):
        engine.switch("m", report)
