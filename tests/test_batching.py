"""Many answers at once: each what it would have been alone, and nobody's trouble is anybody else's."""

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, MambaConfig, MambaForCausalLM

from streaming.engines import batching
from streaming.engines.answers import Answer, Answers
from streaming.engines.base import Generation, Item
from streaming.engines.batching import BatchLane, NotBatchable
from streaming.engines.generate import GenerateLane
from streaming.engines.paged import PAGE_TOKENS, page_bytes
from streaming.engines.stopwatch import Stopwatch
from streaming.errors import GenerationFailed, StreamingError
from streaming.events import Finished, Prefill, TextDelta
from streaming.messages import Sampling
from streaming.models import Model
from streaming.templates import Prompt
from tests.tiny import CONTEXT_TOKENS, tiny_model
from tests.tokenizers import byte_level_bpe

TOKENIZER = byte_level_bpe()
GREEDY = Sampling(temperature=0)
LONG = [10 + place * 7 % 80 for place in range(150)]


class Room:
    """A model with a batch of `pages`; `ask` lets an answer in, `run` steps until all have ended."""

    def __init__(self, pages: int = 40, model: Any = None, name: str = "tiny") -> None:
        self.model: Any = model or tiny_model(TOKENIZER)
        self.loaded = loaded = Model(name, self.model, TOKENIZER, CONTEXT_TOKENS)
        self.answers = Answers(loaded)
        page = page_bytes(self.model, batching.CHUNK_TOKENS + batching.MAX_ROWS)
        self.batch = BatchLane(loaded, cache_bytes=pages * page)
        self.single = GenerateLane(loaded, self.answers)
        self.freed: list[Generation] = []

    def open(self, ids: list[int], sampling: Sampling, tokens: int, seen: list[Item]) -> Answer:
        generation = Generation()
        generation.subscribe(seen.append)
        return self.answers.open(
            Prompt(ids, 0, False), sampling, max_new_tokens=tokens, stops=(), generation=generation,
            stopwatch=Stopwatch(0.0),
        )  # fmt: skip

    def ask(self, ids: list[int], sampling: Sampling = GREEDY, tokens: int = 12) -> "Seen":
        seen = Seen()
        answer = self.open(ids, sampling, tokens, seen)
        seen.generation = answer.generation
        pages = self.batch.pages(len(ids), answer.config, sampling.seed)
        assert self.batch.fits(pages)
        self.batch.add(answer, pages, lambda: self.freed.append(answer.generation))
        return seen

    def step(self) -> bool:
        return self.batch.step(alone=True)

    def run(self) -> None:
        while self.step():
            pass
        assert len(self.batch) == self.batch._reserved == len(self.batch._paged) == 0

    def alone(self, ids: list[int], sampling: Sampling = GREEDY, tokens: int = 12) -> str:
        """The text of the other lane."""
        seen = Seen()
        self.single.answer(self.open(ids, sampling, tokens, seen))
        return seen.text


class Seen(list[Item]):
    generation: Generation

    @property
    def text(self) -> str:
        return "".join(item.text for item in self if isinstance(item, TextDelta))

    @property
    def finished(self) -> Finished:
        assert isinstance(self[-1], Finished), self[-1]
        return self[-1]

    @property
    def error(self) -> StreamingError:
        assert isinstance(self[-1], StreamingError), self[-1]
        return self[-1]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CHUNK_TOKENS", 16)
    monkeypatch.setattr(batching, "SMALL_CHUNK_TOKENS", 8)


# -- what comes out


def test_each_says_what_the_other_lane_says(room: Room) -> None:
    prompts = [LONG, LONG[40:], LONG[::-1], [5], LONG[3:9]]
    answers = [room.ask(ids, tokens=tokens) for tokens, ids in enumerate(prompts, 8)]
    room.run()
    assert [seen.text for seen in answers] == [room.alone(ids, tokens=n) for n, ids in enumerate(prompts, 8)]
    assert [seen.finished.usage.completion_tokens for seen in answers] == [8, 9, 10, 11, 12]


def test_newcomers_join_between_two_tokens(room: Room) -> None:
    first = room.ask(LONG, tokens=30)
    for _ in range(5):
        room.step()
    second = room.ask(LONG[::-1], tokens=5)
    for _ in range(6):
        room.step()
    assert second.finished.reason == "length"
    assert not isinstance(first[-1], Finished)
    room.run()
    assert (first.text, second.text) == (room.alone(LONG, tokens=30), room.alone(LONG[::-1], tokens=5))


def test_a_seed_gives_one_text_whatever_runs_beside_it(room: Room) -> None:
    seeded = Sampling(temperature=1.0, top_p=0.95, seed=5)
    alone = room.ask(LONG[:20], seeded, 25)
    room.run()
    texts = set()
    for neighbours in range(1, 4):
        beside = [room.ask(LONG[neighbours:], Sampling(temperature=1.5), 25) for _ in range(neighbours)]
        again = room.ask(LONG[:20], seeded, 25)
        room.run()
        texts |= {again.text}
        assert all(seen.finished.usage.completion_tokens for seen in beside)
    assert texts == {alone.text}


def test_every_stop_and_end_is_as_in_the_other_lane(room: Room) -> None:
    whole = room.alone(LONG, tokens=20)
    stop = whole[4:6]
    seen = room.ask(LONG, Sampling(temperature=0, stop=(stop,)), 20)
    beside = room.ask(LONG[1:], tokens=20)
    room.run()
    assert seen.text == whole[: whole.index(stop)]
    assert (seen.finished.reason, seen.finished.stopped_by) == ("stop", stop)
    assert beside.text == room.alone(LONG[1:], tokens=20)


@pytest.mark.parametrize("makers", ["one", "several"])
def test_any_end_id_ends_it_and_is_not_shown(makers: str) -> None:
    model: Any = tiny_model(TOKENIZER)
    ids = torch.tensor([LONG])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)[0, len(LONG) :].tolist()
    end = made[4]
    assert end not in made[:4]
    model.generation_config.eos_token_id = end if makers == "one" else [TOKENIZER.eos_token_id, end]
    room = Room(model=model)
    seen = room.ask(LONG)
    room.run()
    assert (seen.finished.reason, seen.finished.usage.completion_tokens) == ("stop", 4)


# -- turns


def test_a_turn_computes_only_what_is_new(room: Room) -> None:
    """After retries and edits in the middle too, and what is said is what would have been said from scratch."""
    answer = [12, 40, 33, 21, 60, 11, 18, 77, 41, 29] * 4
    turns = [
        LONG,
        LONG,  # a retry
        [*LONG, *answer, 15, 16],
        [*LONG[:100], 99, *LONG[101:], 15],  # an edit
        [*LONG, *answer, 15, 16, *answer, 9],
        [99, *LONG],
    ]
    known = [0, 4, 4, 3, 6, 0]
    for ids, pages in zip(turns, known, strict=True):
        seen = room.ask(ids)
        room.run()
        assert seen.text == Room().alone(ids)
        assert seen.finished.usage.cached_tokens == pages * PAGE_TOKENS
        assert seen.finished.usage.prompt_tokens == len(ids)


def test_people_with_one_beginning_share_it(room: Room) -> None:
    first = room.ask(LONG, tokens=20)
    room.step()
    second = room.ask([*LONG[:96], 7, 8], tokens=20)
    room.run()
    assert (first.finished.usage.cached_tokens, second.finished.usage.cached_tokens) == (0, 96)
    assert second.text == room.alone([*LONG[:96], 7, 8], tokens=20)


def test_old_conversations_are_forgotten_first() -> None:
    room = Room(pages=20)
    conversations = [[10 + (place * step) % 80 for place in range(140)] for step in (1, 3, 7, 9, 11)]
    for ids in conversations:
        room.ask(ids)
        room.run()
    known = []
    for ids in reversed(conversations):
        seen = room.ask(ids)
        room.run()
        known.append(seen.finished.usage.cached_tokens)
    assert known[0] == 128
    assert known[-1] == 0


# -- room


def test_nobody_is_let_in_who_would_have_to_be_paused() -> None:
    room = Room(pages=10)
    config = room.answers.config(GREEDY, 100)
    assert room.batch.pages(100, config, None) == 7
    first = room.ask(LONG[:100], tokens=100)
    assert not room.batch.fits(7)
    assert room.batch.fits(3)
    second = room.ask(LONG[:20], tokens=77)
    assert not room.batch.fits(1)
    room.run()
    assert (first.text, second.text) == (room.alone(LONG[:100], tokens=100), room.alone(LONG[:20], tokens=77))
    assert room.batch.fits(10)


def test_what_can_never_fit_is_not_for_the_batch() -> None:
    """Elsewhere it neither answered nor failed, and starved the next request (transformers continuous batching)."""
    room = Room(pages=10)
    assert room.batch.pages(10 * PAGE_TOKENS - 19, room.answers.config(GREEDY, 20), None) == 10
    assert room.batch.pages(10 * PAGE_TOKENS - 18, room.answers.config(GREEDY, 20), None) == 0


@pytest.mark.parametrize(
    ("sampling", "lets_in"),
    [
        (Sampling(temperature=1.0, top_k=5, top_p=0.5, min_p=0.1, seed=1), True),
        (Sampling(repetition_penalty=1.2), False),
    ],
)
def test_what_no_batch_can_express_is_not_for_it(
    room: Room, sampling: Sampling, lets_in: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert bool(room.batch.pages(10, room.answers.config(sampling, 5), sampling.seed)) is lets_in
    assert ("repetition_penalty" in caplog.text) is not lets_in


def test_a_seed_in_half_precision_holds_only_alone() -> None:
    """Sums are rounded otherwise beside others, by so much that another token may win."""
    room = Room(model=tiny_model(TOKENIZER).to(torch.bfloat16))
    assert room.batch.pages(10, room.answers.config(GREEDY, 5), None)
    assert not room.batch.pages(10, room.answers.config(GREEDY, 5), 1)


@pytest.mark.usefixtures("small_chunks")
def test_a_long_prompt_does_not_stall_the_others() -> None:
    """Each step brings the others one token; a newcomer's prompt is read in the rest of it."""
    room = Room()
    first = room.ask(LONG[:5], tokens=60)
    room.step()
    second = room.ask(LONG)
    steps = 0
    while not second.text:
        assert room.step()
        steps += 1
    done = [item.done for item in second if isinstance(item, Prefill)]
    assert done == list(range(0, len(LONG), 8))
    assert first[-1].tokens >= steps  # type: ignore[union-attr]
    room.run()
    assert second.text == room.alone(LONG)


@pytest.mark.usefixtures("small_chunks")
def test_a_prompt_that_is_read_alone_is_read_faster() -> None:
    room = Room()
    seen = room.ask(LONG)
    room.run()
    assert [item.done for item in seen if isinstance(item, Prefill)] == list(range(0, len(LONG), 16))


# -- cancelling and failing


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("steps", [0, 1, 3, 15])
def test_a_cancel_takes_one_step_and_frees_the_pages(steps: int) -> None:
    room = Room()
    seen, beside = room.ask(LONG, tokens=40), room.ask(LONG[::-1], tokens=40)
    for _ in range(steps):
        room.step()
    text = seen.text
    seen.generation.cancel()
    room.step()
    assert seen.finished.reason == "cancelled"
    assert seen.text.startswith(text)
    assert room.freed == [seen.generation]
    assert len(room.batch._paged) == 1
    room.run()
    assert beside.text == room.alone(LONG[::-1], tokens=40)


def broken_at(model: LlamaForCausalLM, step: int, error: BaseException) -> Any:
    steps = itertools.count(1)

    def count(*_: Any) -> None:
        if next(steps) == step:
            raise error

    return model.lm_head.register_forward_pre_hook(count)


@pytest.mark.parametrize("error", [RuntimeError("broken on purpose"), SystemExit(3), MemoryError()])
def test_a_failing_step_ends_those_in_it_and_the_next_ones_work(
    room: Room, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Elsewhere the loop died, and whoever came later waited for ever."""
    answers = [room.ask(LONG), room.ask(LONG[::-1])]
    hook = broken_at(room.model, 4, error)
    room.run()
    hook.remove()
    for seen, ids in zip(answers, (LONG, LONG[::-1]), strict=True):
        assert isinstance(seen.error, GenerationFailed)
        assert seen.error.__cause__ is error
        assert seen.text == room.alone(ids, tokens=3)
    assert answers[0].error is not answers[1].error
    assert "2 answers end with it" in caplog.text
    again = room.ask(LONG)
    room.run()
    assert again.text == room.alone(LONG)


def test_a_text_that_fails_is_no_concern_of_the_others(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, beside = room.ask(LONG), room.ask(LONG[::-1])
    answer = next(iter(room.batch._rows.values())).answer
    monkeypatch.setattr(answer, "read", lambda ids: 1 / 0)
    room.run()
    assert isinstance(seen.error.__cause__, ZeroDivisionError)
    assert beside.text == room.alone(LONG[::-1])


# -- models


def recurrent() -> Any:
    config = MambaConfig(
        vocab_size=len(TOKENIZER), hidden_size=16, state_size=4, num_hidden_layers=2, num_attention_heads=1
    )
    return MambaForCausalLM(config).eval()


def other_attention() -> Any:
    model = tiny_model(TOKENIZER)
    model.set_attn_implementation("eager")
    return model


def careless() -> Any:
    """Attends to everybody's tokens, as attention does that ignores the pages' mask."""
    model: Any = tiny_model(TOKENIZER)
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, forward=forward, **kwargs: forward(
            *args, **kwargs | {"attention_mask": None}
        )
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [(recurrent, "attention|library"), (other_attention, "'eager', not by sdpa"), (careless, "something else")],
)
def test_models_that_cannot_be_batched_are_found_out(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NotBatchable, match=reason):
        Room(model=make())


def test_no_memory_no_batch() -> None:
    with pytest.raises(NotBatchable, match="no memory"):
        Room(pages=0)
