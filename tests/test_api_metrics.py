"""What Prometheus reads: every request once, by its outcome, whoever asked."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from streaming.api import MeteredEngine, Metrics, routes
from streaming.engines.base import Generation
from streaming.engines.script import Fail, Hold, Say, Step, Think
from streaming.engines.scripted import ScriptedEngine
from streaming.errors import EngineBusy, EngineClosed, StreamingError
from streaming.events import Finished, TextDelta, Timings, Usage
from streaming.messages import Message, Sampling
from tests.asgi import client_of

HELLO = [Message("user", "Hello there")]
Make = Callable[..., MeteredEngine]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def make(metrics: Metrics) -> Iterator[Make]:
    engines: list[MeteredEngine] = []

    def engine(*steps: Step) -> MeteredEngine:
        engines.append(MeteredEngine(ScriptedEngine(lambda _: steps), metrics))
        engines[-1].wait_ready()
        return engines[-1]

    yield engine
    for engine_ in engines:
        engine_.close()


def read(metrics: Metrics) -> dict[str, float]:
    """Samples by name, or by the value of their one label; zeros are left out, as are buckets."""
    return {
        sample.labels.get("outcome", sample.name): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.value and not sample.name.endswith(("_bucket", "_created"))
    }


def test_an_answer_is_counted(make: Make, metrics: Metrics) -> None:
    list(make(Think("Hm."), Say("It is so.")).stream(HELLO))
    values = read(metrics)
    assert values["stop"] == 1
    assert values["streaming_prompt_tokens_total"] == 2
    assert values["streaming_generated_tokens_total"] == 6
    assert values["streaming_time_to_first_token_seconds_count"] == 1
    assert values["streaming_tokens_per_second_count"] == 1
    assert values["streaming_ready"] == 1


def test_every_outcome_has_its_name(make: Make, metrics: Metrics) -> None:
    engine = make(Say("one two "), Fail("boom"))
    list(engine.stream(HELLO, Sampling(stop=("two",))))
    list(engine.stream(HELLO, Sampling(max_new_tokens=1)))
    with suppress(StreamingError):
        list(engine.stream(HELLO))
    with suppress(StreamingError):
        engine.stream([])
    engine.close()
    with suppress(EngineClosed):
        engine.stream(HELLO)
    generation = Generation()  # busy may come later too: a full queue lets the one go who has most in it
    metrics.observe(generation)
    generation.fail(EngineBusy("8 wait already."))
    values = read(metrics)
    outcomes = {name: count for name, count in values.items() if not name.startswith("streaming_")}
    assert outcomes == {"stop": 1, "length": 1, "failed": 2, "refused": 1, "busy": 1}


def test_who_runs_and_who_waits_is_told_as_it_stands(make: Make, metrics: Metrics) -> None:
    held, speaks = threading.Event(), threading.Event()
    engine = make(Say("one "), Hold(held))
    first, second = engine.stream(HELLO), engine.stream(HELLO)
    first.subscribe(lambda item: speaks.set() if isinstance(item, TextDelta) else None)
    assert speaks.wait(30)
    values = read(metrics)
    assert (values["streaming_requests_running"], values["streaming_requests_waiting"]) == (1, 1)
    assert values["streaming_generated_tokens_total"] == 1  # as they are written, not when all is said
    second.cancel()
    list(second)
    assert read(metrics)["cancelled"] == 1
    held.set()


def test_an_answer_that_nobody_reads_is_counted_too(make: Make, metrics: Metrics) -> None:
    engine = make(Say("one two three "))
    engine.stream(HELLO)
    list(engine.stream(HELLO))
    assert read(metrics)["stop"] == 2


def test_reused_tokens_are_counted(metrics: Metrics) -> None:
    generation = Generation()
    metrics.observe(generation)
    generation.emit(TextDelta("a", 2))
    generation.emit(TextDelta("b", 2))
    generation.emit(Finished("stop", Usage(100, 90, 3), Timings(0, 0.5, 20)))
    values = read(metrics)
    assert values["streaming_cached_prompt_tokens_total"] == 90
    assert values["streaming_generated_tokens_total"] == 3
    assert values["streaming_time_to_first_token_seconds_sum"] == 0.5


def test_prometheus_reads_it_over_http(make: Make, metrics: Metrics) -> None:
    engine = make(Say("So."))
    with client_of(FastAPI(routes=routes(engine, metrics=metrics))) as client:
        client.chat()
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'streaming_requests_total{outcome="stop"} 1.0' in answer.text


def test_two_apps_in_one_process_share_nothing(make: Make) -> None:
    """Prometheus' default registry is a global: the second app of a process could not even be made."""
    list(make(Say("So.")).stream(HELLO))
    assert "stop" not in read(Metrics())
