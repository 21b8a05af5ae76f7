"""Any order of arrivals, stops and neighbours: each answer is what it would have been alone, and no page is lost.

One small cache serves all schedules of a lane, so that they meet what earlier ones have left there, and crowd it out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.engines import batching, generate
from streaming.engines.base import Item
from streaming.engines.generate import GenerateLane
from streaming.engines.paged import PAGE_TOKENS
from streaming.messages import Sampling
from tests.test_batching import GREEDY, TOKENIZER, Room, Seen
from tests.test_prefixes import TOKEN_BYTES

PAGES = 14
COMMON = [10 + place * 7 % 80 for place in range(3 * PAGE_TOKENS)]


@dataclass(frozen=True)
class Arrival:
    """Somebody comes before step `at`, and may leave again before step `leaves`."""

    at: int
    ids: tuple[int, ...]
    tokens: int
    sampling: Sampling = GREEDY
    leaves: int | None = None


prompts = st.builds(
    lambda shared, own: (*COMMON[:shared], *own),
    st.sampled_from([0, 5, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 2 * PAGE_TOKENS, 3 * PAGE_TOKENS]),
    st.lists(st.integers(3, 90), min_size=1, max_size=40),
)
samplings = st.sampled_from([GREEDY, GREEDY, Sampling(temperature=1.0, seed=1), Sampling(temperature=0.8, top_p=0.9)])
arrivals = st.builds(
    Arrival,
    at=st.integers(0, 25),
    ids=prompts,
    tokens=st.sampled_from([1, 2, 9, PAGE_TOKENS + 3]),
    sampling=samplings,
    leaves=st.one_of(st.none(), st.none(), st.integers(0, 40)),
)
schedules = st.lists(arrivals, min_size=1, max_size=7)


class House:
    """A batch that is used all along, and texts of the other lane to compare with."""

    def __init__(self) -> None:
        self.room = Room(pages=PAGES)
        self.alone = cache(self._alone)
        self.seeded: dict[Arrival, str] = {}

    def _alone(self, ids: tuple[int, ...], tokens: int) -> str:
        return self.room.alone(list(ids), tokens=tokens)

    def follow(self, schedule: list[Arrival]) -> list[tuple[Arrival, Seen]]:
        """Let them in as there is room, in their order, and step until all have ended."""
        expected = sorted(schedule, key=lambda arrival: arrival.at)
        here: list[tuple[Arrival, Seen]] = []
        step = 0
        while len(here) < len(schedule) or len(self.room.batch):
            while len(here) < len(schedule) and expected[len(here)].at <= step and self._fits(expected[len(here)]):
                arrival = expected[len(here)]
                here.append((arrival, self.room.ask(list(arrival.ids), arrival.sampling, arrival.tokens)))
            for arrival, seen in here:
                if arrival.leaves is not None and arrival.leaves <= step:
                    seen.generation.cancel()
            self.room.step()
            self.check_pages()
            step += 1
        return here

    def _fits(self, arrival: Arrival) -> bool:
        config = self.room.answers.config(arrival.sampling, arrival.tokens)
        pages = self.room.batch.pages(len(arrival.ids), config, arrival.sampling.seed)
        assert pages
        return self.room.batch.fits(pages)

    def check_pages(self) -> None:
        """Whatever is used was promised to somebody, and each page is used, kept or free."""
        batch = self.room.batch
        assert used_pages(self.room) <= batch._reserved <= PAGES
        assert len(batch) == len(batch._paged)


def used_pages(room: Room) -> int:
    """Pages that a sequence has; what is neither had nor kept is free, or it is lost."""
    paged = room.batch._paged
    (allocator,), pool = paged._allocators, paged._processor.cache.pool
    used = {block for blocks in allocator.block_table.values() for block in blocks}
    free = pool.num_free_sectors * allocator.blocks_per_sector + pool.count_free_blocks(allocator.index)
    assert len(used) + paged.kept_pages + free == paged.pages
    return len(used)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        for lane in (batching, generate):
            monkeypatch.setattr(lane, "CHUNK_TOKENS", 48)
            monkeypatch.setattr(lane, "SMALL_CHUNK_TOKENS", 16)
        yield House()


@given(schedule=schedules)
@settings(max_examples=6)
@example([Arrival(0, (5,), 1), Arrival(0, (5,), 1), Arrival(0, (5,), 1, leaves=0)])
@example([Arrival(0, tuple(COMMON), 35)] * 5)
@example([Arrival(at, (*COMMON, 5), 9, leaves=at + 1) for at in range(6)] + [Arrival(7, (*COMMON, 5), 9)])
def test_whoever_comes_and_goes_each_gets_what_it_would_have_got_alone(house: House, schedule: list[Arrival]) -> None:
    for arrival, seen in house.follow(schedule):
        finished, usage = seen.finished, seen.finished.usage
        assert usage.prompt_tokens == len(arrival.ids)
        assert usage.cached_tokens % PAGE_TOKENS == 0
        assert usage.cached_tokens < len(arrival.ids)
        assert finished.reason in ("length", "stop") or arrival.leaves is not None
        assert usage.completion_tokens <= arrival.tokens
        whole = seen.text
        if arrival.sampling == GREEDY:
            whole = house.alone(arrival.ids, arrival.tokens)
        elif arrival.sampling.seed is not None and finished.reason == "length":
            key = Arrival(0, arrival.ids, arrival.tokens, arrival.sampling)
            whole = house.seeded.setdefault(key, seen.text)
        if finished.reason == "cancelled":
            assert whole.startswith(seen.text.rstrip("\ufffd"))
        else:
            assert seen.text == whole
    assert used_pages(house.room) == 0


@dataclass(frozen=True)
class Turn:
    """A prompt that begins as an earlier one does, with so much of it, and goes on otherwise. `leaves`: its reader
    stops at so many events."""

    earlier: int
    share: float
    then: tuple[int, ...]
    leaves: int | None = None


turns = st.lists(
    st.builds(
        Turn,
        earlier=st.integers(0, 7),
        share=st.sampled_from([0.0, 0.3, 0.5, 0.95, 1.0]),
        then=st.lists(st.integers(3, 90), max_size=30).map(tuple),
        leaves=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    ),
    min_size=2,
    max_size=7,
)


class Leaving(Seen):
    """Stops at its `leaves`th event, in the prompt or in the answer."""

    leaves: int | None = None

    def append(self, item: Item) -> None:
        super().append(item)
        if len(self) == self.leaves:
            self.generation.cancel()


class Reuse:
    """Both lanes of a model, each with room for a few conversations; `fresh` remembers nothing."""

    def __init__(self) -> None:
        self.room = Room(pages=PAGES)
        self.fresh = cache(self._fresh)
        self.single = GenerateLane(self.room.loaded, self.room.answers, cache_bytes=300 * TOKEN_BYTES)

    def _fresh(self, ids: tuple[int, ...]) -> str:
        return self.room.alone(list(ids))

    def ask(self, lane: str, ids: list[int], leaves: int | None) -> Leaving:
        seen = Leaving()
        seen.leaves = leaves
        answer = self.room.open(ids, GREEDY, 12, seen)
        seen.generation = answer.generation
        if lane == "alone":
            self.single.answer(answer)
        else:
            self.room.batch.add(answer, self.room.batch.pages(len(ids), answer.config, None), lambda: None)
            self.room.run()
        return seen


@pytest.fixture(scope="module")
def reuse() -> Reuse:
    return Reuse()


@given(turns=turns)
@settings(max_examples=6)
@pytest.mark.usefixtures("house")  # small chunks
@pytest.mark.parametrize("lane", ["batched", "alone"])
def test_edits_retries_and_stops_in_the_middle_change_the_cost_and_never_the_text(
    reuse: Reuse, lane: str, turns: list[Turn]
) -> None:
    """Greedy of a turn that reuses what earlier ones left is that of a model which remembers nothing."""
    said = [COMMON]
    for turn in turns:
        before = said[turn.earlier % len(said)]
        ids = [*before[: int(len(before) * turn.share)], *turn.then][:250] or [7]
        seen = reuse.ask(lane, ids, turn.leaves)
        usage, whole = seen.finished.usage, reuse.fresh(tuple(ids))
        assert 0 <= usage.cached_tokens < usage.prompt_tokens == len(ids)
        assert whole.startswith(seen.text.rstrip("\ufffd"))
        assert seen.text == whole or seen.finished.reason == "cancelled"
        said.append([*ids, *TOKENIZER(seen.text, add_special_tokens=False)["input_ids"]])
    assert used_pages(reuse.room) == 0
    assert reuse.single._prompts._kept.size_bytes <= 300 * TOKEN_BYTES
