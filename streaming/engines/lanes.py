"""Two lanes on one thread: a batch of answers, and beside it one that no batch can express. They take turns by token.

Everything here runs on the one inference thread, which imports it. Knows neither messages nor templates.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic

from streaming.engines.answers import Answer
from streaming.engines.batching import BatchLane
from streaming.engines.generate import GenerateLane, explained, nobody
from streaming.engines.queue import Job, Request
from streaming.engines.worker import Worker
from streaming.engines.zero_gpu import ZeroGpuLane
from streaming.errors import StreamingError


class Lanes(Generic[Job]):
    """Serves the requests of a worker: it hands over the first, and the others that wait are taken as there is room.

    `wants` says how many pages of the batch's cache a request takes, 0 where it has to be answered alone; `open_answer`
    makes the Answer. Both may raise a StreamingError, which ends that request.
    """

    def __init__(
        self,
        worker: Worker[Job],
        single: GenerateLane | ZeroGpuLane,
        batch: BatchLane | None,
        *,
        wants: Callable[[Request[Job]], int],
        open_answer: Callable[[Request[Job]], Answer],
    ) -> None:
        self.single = single
        self.batch = batch
        self._worker = worker
        self._wants = wants
        self._open_answer = open_answer
        self._single_taken = False

    def serve(self, request: Request[Job]) -> None:
        """Answer a request, and whatever comes before that has ended."""
        self._begin(request)
        while self.batch:
            self._turn(self.batch)

    def _turn(self, batch: BatchLane) -> bool:
        """One step of the batch, for all in it and all who may join. Says whether there was anybody."""
        while request := self._worker.another(partial(self._next, batch)):
            self._begin(request)
        return batch.step(alone=not self._single_taken)

    def _next(self, batch: BatchLane, waiting: list[Request[Job]]) -> Request[Job] | None:
        """The first that its lane has room for; but nobody passes one who waits for room in the batch to go there."""
        full = False
        for request in waiting:
            try:
                pages = self._wants(request)
            except Exception:  # whatever it is, it is no fault of those who are being answered
                return request  # to be told so
            if not pages and not self._single_taken:
                return request
            if pages and not full:
                if batch.fits(pages):
                    return request
                full = True
        return None

    def _begin(self, request: Request[Job]) -> None:
        try:
            pages = self._wants(request) if self.batch is not None else 0
            answer = self._open_answer(request)
            if pages and self.batch is not None:
                self.batch.add(answer, pages, partial(self._worker.done, request))
                return
            self._answer_alone(answer)
        except StreamingError as error:
            request.generation.fail(error)
        except BaseException as error:  # SystemExit too: a model's code may not end everybody's thread
            failure = explained(error)
            failure.__cause__ = error
            request.generation.fail(failure)
        self._worker.done(request)

    def _answer_alone(self, answer: Answer) -> None:
        self._single_taken = True
        try:
            self.single.answer(answer, others=partial(self._turn, self.batch) if self.batch is not None else nobody)
        finally:
            self._single_taken = False
