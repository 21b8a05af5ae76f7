"""Runs: a generation goes on without viewers, and any number of viewers see all of it."""

import asyncio
import threading

import pytest

from streaming.engines.base import Generation
from streaming.errors import GenerationFailed
from streaming.events import Event, Finished, Prefill, Queued, ReasoningDelta, Tentative, TextDelta
from streaming.messages import Message
from streaming.runs import Run, View

ANSWER: list[Event] = [
    Queued(2),
    Queued(1),
    Prefill(10, 10),
    ReasoningDelta("hm", 1),
    TextDelta("one ", 2),
    TextDelta("two", 3),
    Finished("stop"),
]


def started(generation: Generation) -> tuple[Run, list[View]]:
    ended: list[View] = []
    run = Run(generation, ended.append)
    run.start()
    return run, ended


async def everything(run: Run, position: int = 0) -> list[Event]:
    return [event async for _, event in run.tail(position)]


def test_viewers_who_come_early_late_and_in_the_middle_see_the_same() -> None:
    async def watch() -> None:
        generation = Generation()
        run, ended = started(generation)
        early = asyncio.create_task(everything(run))
        await asyncio.sleep(0)
        for event in ANSWER[:5]:
            generation.emit(event)
        middle = asyncio.create_task(everything(run, position=4))
        feeder = threading.Thread(target=lambda: [generation.emit(event) for event in ANSWER[5:]])
        feeder.start()
        assert await early == ANSWER
        assert await middle == ANSWER[4:]
        assert await everything(run) == ANSWER
        assert len(ended) == 1
        feeder.join()

    asyncio.run(watch())


def test_what_is_tentative_stands_until_there_is_news() -> None:
    generation = Generation()
    run, _ = started(generation)
    seen = []
    for event in (Tentative("a", "b"), TextDelta("c"), Tentative("d"), Tentative(), Tentative("e"), Finished("stop")):
        generation.emit(event)
        view = run.view()
        seen.append((view.text, view.tentative))
    none = Tentative()
    assert seen == [
        ("", Tentative("a", "b")),
        ("c", none),
        ("c", Tentative("d")),
        ("c", none),
        ("c", Tentative("e")),
        ("c", none),
    ]


def test_where_guesses_have_brought_the_text_is_counted_through_thought_and_answer() -> None:
    generation, said = Generation(), Message("assistant", "", "Let me")
    run = Run(generation, lambda view: None, said=said, guessed=((0, 2),))
    run.start()
    for event in (
        ReasoningDelta(" see.", 3, 2, guessed=4),
        TextDelta("So", 4, 2),
        TextDelta(" it is", 7, 4, guessed=3),
        Finished("stop"),
    ):
        generation.emit(event)
    view = run.view()
    written = view.reasoning + view.text
    assert written == "Let me see.So it is"
    assert view.guessed == ((0, 2), (6, 10), (13, 16))
    assert [written[start:end] for start, end in view.guessed] == ["Le", " see", " it"]


def test_the_view_tells_what_the_page_shows() -> None:
    generation = Generation()
    run, ended = started(generation)
    phases = [run.view().phase]
    for event in ANSWER:
        generation.emit(event)
        phases.append(run.view().phase)
    assert phases == ["queued", "queued", "queued", "prefill", "thinking", "answering", "answering", "ended"]
    view = run.view()
    assert (view.text, view.reasoning, view.tokens) == ("one two", "hm", 3)
    assert view.queued == Queued(1)
    assert view.prefill == Prefill(10, 10)
    assert view.finished == Finished("stop")
    assert view.error is None
    assert ended[0].text == "one two"


def test_the_end_is_noted_before_any_viewer_sees_it() -> None:
    """Else a viewer that looks into the conversation at the end would find the answer still empty."""
    generation = Generation()
    run: Run
    seen: list[str] = []
    run = Run(generation, lambda view: seen.append(f"{view.phase}, viewers see {run.view().phase}"))
    run.start()
    generation.emit(TextDelta("x", 1))
    generation.emit(Finished("stop"))
    assert seen == ["ended, viewers see answering"]


def test_what_was_said_before_an_error_stays() -> None:
    async def watch() -> None:
        generation = Generation()
        run, ended = started(generation)
        generation.emit(TextDelta("half", 1))
        generation.fail(GenerationFailed("out of memory"))
        with pytest.raises(GenerationFailed, match="out of memory"):
            await everything(run)
        assert ended[0].text == "half"
        assert str(ended[0].error) == "out of memory"

    asyncio.run(watch())


def test_a_viewer_that_leaves_changes_nothing() -> None:
    async def watch() -> None:
        generation = Generation()
        run, _ = started(generation)
        viewer = asyncio.create_task(everything(run))
        await asyncio.sleep(0)
        viewer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await viewer
        for event in ANSWER:
            generation.emit(event)
        assert not generation.cancelled
        assert await everything(run) == ANSWER

    asyncio.run(watch())


def test_a_viewer_whose_loop_is_gone_does_not_disturb_the_engine() -> None:
    generation = Generation()
    run, _ = started(generation)
    loop = asyncio.new_event_loop()
    viewer = loop.create_task(everything(run))
    loop.run_until_complete(asyncio.sleep(0))
    viewer.cancel()
    loop.run_until_complete(asyncio.gather(viewer, return_exceptions=True))
    loop.close()
    generation.emit(Finished("stop"))
    assert run.view().ended


def test_stop_reaches_the_generation() -> None:
    generation = Generation()
    run, _ = started(generation)
    run.stop()
    run.stop()
    assert generation.cancelled


def test_events_before_the_start_are_not_lost() -> None:
    generation = Generation()
    generation.emit(TextDelta("early", 1))
    run, _ = started(generation)
    assert run.view().text == "early"
