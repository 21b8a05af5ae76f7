"""Clients who mean harm, on the real lanes: through the API and through Chats, in many threads, with any value.

After each attack the engine is idle, has all its pages, and says to the next one what it says to everybody.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streaming.api import routes
from streaming.chats import Chats
from streaming.conversation import Settings
from streaming.errors import ConversationBusy, EngineBusy, EngineClosed, InvalidRequest, NotFound
from streaming.events import Finished, TextDelta
from streaming.messages import Message, Sampling
from streaming.stops import StopMatcher
from tests.asgi import CHAT, Client, Exchange, client_of, events
from tests.plain import cut
from tests.tiny import tiny_folder
from tests.worlds import GREEDY, TIMEOUT_S, BatchedWorld, LocalWorld, Reader, ask, nothing, small_chunks

HELLO = "Hello, who are you?"
ENDLESS = Sampling(temperature=0, max_new_tokens=300)
PENALTY = {"repetition_penalty": 1.3}  # no batch can express it
LANES = pytest.mark.parametrize("extra", [{}, PENALTY], ids=["batched", "alone"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchedWorld]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_chunks(monkeypatch, 16)
        world = BatchedWorld(tiny_folder(tmp_path_factory.mktemp("tiny")))
        yield world
        world.engine.close()


@pytest.fixture(scope="module")
def app(world: BatchedWorld) -> FastAPI:
    return FastAPI(routes=routes(world.engine))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[Client]:
    with client_of(app) as client:
        yield client


@pytest.fixture(autouse=True)
def unharmed(world: BatchedWorld) -> Iterator[None]:
    yield
    assert_unharmed(world)


def assert_unharmed(world: BatchedWorld) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (status := world.engine.status()).running or status.waiting:
        assert time.monotonic() < deadline, f"it goes on for nobody: {status}"
        time.sleep(0.002)
    assert status.state == "ready"
    batch = world.engine._loaded.lanes.batch
    tables = [allocator.block_table for allocator in batch._paged._allocators]
    assert (len(batch), batch._reserved, len(batch._paged), tables) == (0, 0, 0, [{}])
    assert ask(world.engine, HELLO).wait().text == world.expected(HELLO)


# -- leaving


@LANES
def test_clients_who_leave_at_any_moment_free_what_they_had(app: FastAPI, extra: dict[str, float]) -> None:
    """Before the first byte, in the queue, in the prompt, in the answer (gradio 4016, llama.cpp 11720)."""
    chance = random.Random(5)

    async def visit(number: int) -> None:
        fields = {"stream": number % 3 > 0, "max_tokens": 200, "temperature": 0, "user": str(number)} | extra
        async with Exchange(app, f"{number} " * chance.choice([1, 60]), **fields) as exchange:
            if fields["stream"] and (until := chance.choice(["", "role", '"content":"'])):
                await exchange.read_until(until)
            for _ in range(chance.choice([0, 1, 30])):
                await asyncio.sleep(0)
            exchange.leave()

    async def scenario() -> None:
        await asyncio.gather(*(visit(number) for number in range(24)))

    asyncio.run(scenario())


@LANES
@pytest.mark.parametrize("limit", [1, 3, 300])
def test_cancels_of_many_threads_race_with_the_end(world: BatchedWorld, limit: int, extra: dict[str, Any]) -> None:
    sampling = Sampling(temperature=0, max_new_tokens=limit, **extra)
    for round_ in range(5):
        readers = [Reader(world.engine.stream([Message("user", HELLO)], sampling, user=str(n)), nothing) for n in "abc"]
        go = threading.Barrier(9)

        def cancel(reader: Reader, pause: float, go: threading.Barrier = go) -> None:
            go.wait()
            time.sleep(pause)
            reader.generation.cancel()
            reader.generation.cancel()

        threads = [
            threading.Thread(target=cancel, args=(reader, round_ * number * 0.004))
            for reader in readers
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reader in readers:
            reader.wait()
            assert [type(item) for item in reader.items].count(Finished) == 1
            assert isinstance(reader.items[-1], Finished)


def test_closing_in_the_middle_of_everything(world: BatchedWorld) -> None:
    """From two threads, while others go on asking: everybody gets one end, and the thread of the model is gone."""
    engine = world.fresh()
    engine.wait_ready(TIMEOUT_S)
    inference = engine._worker._thread
    readers: list[Reader] = []
    refused, busy = threading.Event(), threading.Event()

    def pester(number: int) -> None:
        sampling = replace(ENDLESS, **(PENALTY if number % 2 else {}))  # type: ignore[arg-type]
        try:
            while True:
                readers.append(ask(engine, f"{number}?", sampling, user=str(number)))
                readers[-1].wait()
        except EngineClosed:
            refused.set()
        except EngineBusy:
            busy.set()

    threads = [threading.Thread(target=pester, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while not any(isinstance(item, TextDelta) for reader in list(readers) for item in list(reader.items)):
        time.sleep(0.005)
    closers = [threading.Thread(target=engine.close) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in (*closers, *threads):
        thread.join(TIMEOUT_S)
    assert refused.is_set()
    assert not busy.is_set()  # six who wait for their answers are no crowd
    for reader in readers:
        last = reader.wait().items[-1]
        assert isinstance(last, EngineClosed) or (isinstance(last, Finished) and last.reason == "cancelled")
    assert not inference.is_alive()


# -- any value


def refused_or_answered(client: Client, body: dict[str, Any]) -> bool:
    """Says whether it was answered; otherwise the field at fault is named."""
    answer = client.send("POST", CHAT, {"messages": [{"role": "user", "content": HELLO}]} | body)
    if answer.status_code == 200:
        assert isinstance(answer.json()["choices"][0]["message"]["content"], str)
        return True
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].partition("[")[0] in (body.keys() | {"messages"})
    return False


numbers = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([0, -1, 1e-5, 1.1e-5, 1e-45, 5e-324, 1e-300, 1e300, 2**31, 2**63, 2**64, 10**30, 10**400, 0.01]),
)
hostile_fields = st.fixed_dictionaries(
    {"max_tokens": st.one_of(st.integers(1, 3), st.just(2**31 - 1), st.just(10**30))},
    optional={
        "temperature": numbers,
        "top_p": numbers,
        "top_k": numbers,
        "min_p": numbers,
        "repetition_penalty": numbers,
        "seed": numbers,
        "stop": st.lists(st.text(min_size=1, max_size=5), max_size=4),
    },
)


@given(fields=hostile_fields)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_setting_harms_the_model(client: Client, fields: dict[str, Any]) -> None:
    """ms-swift 10133: a bad parameter hung this request and all later ones."""
    if fields["max_tokens"] == 2**31 - 1:
        fields |= {"stop": ["e", "a", " ", "o", "\ufffd"]}  # it may say as much as it likes, but need not here
    refused_or_answered(client, fields)


@pytest.mark.parametrize("seed", [0, -1, 1, 2**31, 2**32 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 + 3, 10**40])
@LANES
def test_any_seed_repeats(client: Client, seed: int, extra: dict[str, Any]) -> None:
    said = [
        client.chat(HELLO, seed=seed, temperature=1.5, max_tokens=12, **extra).json()["choices"][0]["message"]
        for _ in range(2)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"]
)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_what_is_no_number_is_refused_by_name(client: Client, field: str, value: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "Hi"}}], "{field}": {value}}}'
    answer = client.send("POST", CHAT, body.encode())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("stop", ["x" * 100_000, ["ab" * 50_000], [f"stop {number}" for number in range(20_000)]])
def test_stop_strings_that_cost_everybody_time_are_refused(client: Client, stop: Any) -> None:
    answer = client.chat(HELLO, stop=stop)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stop"
    assert "20,000" in answer.json()["error"]["message"]


@LANES
def test_a_thousand_stop_strings_end_an_answer_where_they_should(
    world: BatchedWorld, client: Client, extra: dict[str, Any]
) -> None:
    whole = world.plainly(HELLO, 20, **extra)
    stops = [f"{number} is not said" for number in range(998)] + [whole[-4:], whole[9:12]]
    message = client.chat(HELLO, temperature=0, max_tokens=20, stop=stops, **extra).json()["choices"][0]["message"]
    assert message["content"] == cut(whole, stops)[0] != whole


def test_a_stop_string_as_long_as_a_book_is_matched_in_passing() -> None:
    """The class itself takes any: no recursion, no search of the whole at each letter."""
    stop = "ab" * 100_000 + "c"
    matcher = StopMatcher([stop, "never"])
    assert "".join(map(matcher.add, ("ab" * 50_000, "ab" * 50_000))) == ""
    assert matcher.add("c") == ""
    assert matcher.stopped == stop


# -- any text

anything = st.lists(
    st.one_of(
        st.text(max_size=10),
        st.characters(categories=["Cs"]),
        st.sampled_from("\x00\u200d\ufe0f\u202e\u2066\ufeff\ufffd\uffff\x1b\x7f\u0300\U000e0041\U0010ffff"),
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<0x0A>", "▁"]),
    ),
    min_size=1,
    max_size=12,
).map("".join)


def _has_half_a_character(text: str) -> bool:
    """As the app reads it: two halves that stand side by side in JSON are the whole character."""
    return any("\ud800" <= character <= "\udfff" for character in json.loads(json.dumps(text)))


@given(text=anything, system=anything)
@example(text="\ud83d\ude00", system="\ud83d")
@example(text="\ud83d\ude00", system="a")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_answered_or_refused(client: Client, text: str, system: str) -> None:
    answer = client.chat(
        messages=[{"role": "system", "content": system}, {"role": "user", "content": text}], max_tokens=1
    )
    half = any(_has_half_a_character(part) for part in (text, system))
    assert answer.status_code == (400 if half or not text.strip() else 200)
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].startswith("messages[")


@pytest.mark.parametrize("letter", ["a", "word ", "👨‍👩‍👧‍👦", "<|im_end|>", "\x00", "{{ x }}"])
def test_a_megabyte_is_refused_with_both_lengths_and_harms_nobody(
    world: BatchedWorld, client: Client, letter: str
) -> None:
    text = letter * (1_000_000 // len(letter.encode()))
    running = ask(world.engine, HELLO, ENDLESS, user="ann")
    refused = client.chat(text)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert "512" in error["message"]
    assert running.wait().text == world.expected(HELLO, 300)


# -- what the API says of the real lanes


@LANES
def test_tokens_that_were_known_are_told(client: Client, extra: dict[str, Any]) -> None:
    """After an edit in the middle, of an answer and of a question, only what comes before it is."""
    first = f"{'batched' if not extra else 'alone'} " * 30

    def known(*texts: str) -> tuple[int, int]:
        roles = ("user", "assistant", "user", "assistant", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        usage = client.chat(messages=messages, max_tokens=8, temperature=0, **extra).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    page = 32 if not extra else 1
    new, prompt = known(first)
    assert new < 32
    again, _ = known(first)
    assert prompt - 1 - page < again < prompt
    turn, longer = known(first, "So it is.", "And then?")
    assert prompt - 32 - page <= turn < longer
    edited, _ = known(first, "No, it is not.", "And then?")
    assert prompt - 32 - page <= edited <= turn + page
    other, _ = known("x" + first, "So it is.", "And then?")
    assert other < 32


@LANES
def test_an_error_in_the_middle_of_a_stream_is_one_event_and_the_last(
    world: BatchedWorld, client: Client, extra: dict[str, Any]
) -> None:
    """transformers 38443, on a model that breaks: its words hold quotes and lines, and stay one event."""
    broken = RuntimeError('boom "quoted"\nand a second line\r\n\u2028data: [DONE]\n\n')
    failing = LocalWorld.failing(world, 4, broken) if extra else world.failing(4, broken)
    with failing:
        answer = client.chat(HELLO, stream=True, temperature=0, max_tokens=20, **extra)
    *chunks, error = events(answer.text)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == world.plainly(HELLO, 3, **extra)
    assert 'boom "quoted"\nand a second line' in error["error"]["message"]
    assert error["error"]["code"] == "generation_failed"


def test_a_seed_alone_repeats_beside_a_batch(world: BatchedWorld) -> None:
    """The library draws from the one chance of the process: whoever is drawn for beside it must not touch that."""
    seeded = Sampling(temperature=1.2, seed=11, max_new_tokens=20, repetition_penalty=1.1)
    alone = ask(world.engine, HELLO, seeded).wait().text
    warm = Sampling(temperature=1.0, max_new_tokens=60)
    beside = [ask(world.engine, f"{number}?", warm, user=str(number)) for number in range(4)]
    assert ask(world.engine, HELLO, seeded, user="ann").wait().text == alone
    for reader in beside:
        assert reader.wait().finished


# -- through Chats


def test_many_threads_do_everything_to_one_conversation(world: BatchedWorld) -> None:
    """Send, edit, retry, undo and stop in any order, from many tabs: refused in words, or done, and never half."""
    chats, owner, settings_ = Chats(world.engine), "ann", Settings(sampling=replace(GREEDY, max_new_tokens=30))
    conversation = chats.send(owner, "", HELLO, settings_).conversation_id
    done: list[str] = []
    refused: list[str] = []

    def act(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            nodes = chats.snapshot(owner, conversation).nodes
            node = chance.choice(nodes).id if nodes else "none"
            action = chance.choice(["send", "edit", "retry", "undo", "stop", "stop", "stop"])
            try:
                match action:
                    case "send":
                        chats.send(owner, conversation, f"{seed} asks", settings_)
                    case "edit":
                        chats.edit(owner, conversation, node, f"{seed} corrects", settings_)
                    case "retry":
                        chats.retry(owner, conversation, node, settings_)
                    case "undo":
                        chats.undo(owner, conversation)
                    case "stop":
                        chats.stop(owner, conversation)
            except (ConversationBusy, InvalidRequest, NotFound) as error:
                refused.append(str(error))
            else:
                done.append(action)
            time.sleep(0.01 * chance.random())  # or all is over before the first stop has had its effect

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chats.stop(owner, conversation)
    deadline = time.monotonic() + TIMEOUT_S
    while (last := chats.snapshot(owner, conversation)).run is not None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert {"send", "stop"} <= set(done)
    assert len(done) + len(refused) == 6 * 25
    assert all(words.endswith(".") for words in refused)
    roles = [node.message.role for node in last.nodes]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert all(node.state != "running" for node in last.nodes)
    answer = chats.send(owner, conversation, "Still there?", settings_)
    assert answer.run is not None
    while chats.snapshot(owner, conversation).run is not None:
        assert time.monotonic() < deadline + TIMEOUT_S
        time.sleep(0.005)
    assert chats.snapshot(owner, conversation).nodes[-1].state in ("complete", "cut")
