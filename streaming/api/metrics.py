"""What Prometheus may know: requests by outcome, who waits and runs, tokens, and how fast.

Counted at the engine, so that the page's requests are in it as well as the API's. Numbers are noted in the engine's
thread under the registry's short locks; who waits and runs is asked when somebody looks.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streaming.engines.base import Engine, Generation, Item, Status
from streaming.errors import EngineBusy, InvalidRequest, StreamingError
from streaming.events import Finished, ReasoningDelta, TextDelta
from streaming.messages import Message, Sampling

TTFT_BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 180)
SPEED_BUCKETS = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 200, 500)
OUTCOMES = ("stop", "length", "cancelled", "failed", "refused", "busy")


class Metrics:
    """A registry of its own, filled by a MeteredEngine."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter("streaming_requests", "Requests by outcome", ["outcome"], registry=registry)
        self._prompt = Counter("streaming_prompt_tokens", "Tokens of the prompts answered", registry=registry)
        self._cached = Counter("streaming_cached_prompt_tokens", "Those not computed again", registry=registry)
        self._generated = Counter("streaming_generated_tokens", "Tokens generated", registry=registry)
        self._ttft = Histogram(
            "streaming_time_to_first_token_seconds",
            "From a request to its first token, the queue included",
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        self._speed = Histogram(
            "streaming_tokens_per_second",
            "Speed of each answer after its first token",
            buckets=SPEED_BUCKETS,
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)

    def text(self) -> bytes:
        """Everything in Prometheus' text form."""
        return generate_latest(self.registry)

    def fail(self, error: StreamingError) -> None:
        """Note a request that got no answer, or no whole one."""
        self._requests.labels(_outcome(error)).inc()

    def observe(self, generation: Generation) -> None:
        """Note what becomes of a generation."""
        counted = 0

        def count(tokens: int) -> None:
            nonlocal counted
            self._generated.inc(max(0, tokens - counted))
            counted = max(counted, tokens)

        def note(item: Item) -> None:
            match item:
                case TextDelta() | ReasoningDelta():
                    count(item.tokens)
                case Finished(reason, usage, timings):
                    count(usage.completion_tokens)
                    self._requests.labels(reason).inc()
                    self._prompt.inc(usage.prompt_tokens)
                    self._cached.inc(usage.cached_tokens)
                    if usage.completion_tokens:
                        self._ttft.observe(timings.ttft_s)
                    if timings.decode_tps:
                        self._speed.observe(timings.decode_tps)
                case StreamingError():
                    self.fail(item)

        generation.observe(note)


def _outcome(error: StreamingError) -> str:
    match error:
        case InvalidRequest():
            return "refused"
        case EngineBusy():
            return "busy"
        case _:
            return "failed"


class MeteredEngine:
    """An engine as it is, and noted in `metrics`."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        metrics.registry.register(_Now(engine))

    def start(self) -> None:
        self._engine.start()

    def stream(
        self,
        prompt: str | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        user: str = "",
        continues: bool = False,
        model: str | None = None,
    ) -> Generation:
        try:
            generation = self._engine.stream(prompt, sampling, user=user, continues=continues, model=model)
        except StreamingError as error:
            self._metrics.fail(error)
            raise
        self._metrics.observe(generation)
        return generation

    def status(self) -> Status:
        return self._engine.status()

    def wait_ready(self, timeout: float | None = None) -> Status:
        return self._engine.wait_ready(timeout)

    def models(self) -> tuple[str, ...]:
        """The names that the engine's server lists; none where the engine has its model itself."""
        listed: Callable[[], tuple[str, ...]] | None = getattr(self._engine, "models", None)
        return listed() if listed is not None else ()

    def switch(self, name: str, done: Callable[[StreamingError | None], None]) -> None:
        self._engine.switch(name, done)

    def call_off(self) -> bool:
        return self._engine.call_off()

    def close(self) -> None:
        self._engine.close()


class _Now(Collector):
    """What an engine says of itself when it is asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        status = self._engine.status()
        yield GaugeMetricFamily("streaming_requests_running", "Requests being answered", status.running)
        yield GaugeMetricFamily("streaming_requests_waiting", "Requests that wait", status.waiting)
        yield GaugeMetricFamily("streaming_ready", "1 while the model can answer", int(status.state == "ready"))
