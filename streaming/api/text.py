"""POST /v1/completions: a text, read as it stands, and how it goes on, in OpenAI's form."""

from fastapi import Request, Response

from streaming.api.answering import Answer, begin, respond
from streaming.api.answers import FinishReason, TextChoice, TextCompletion
from streaming.api.requests import CompletionRequest
from streaming.engines.base import Engine
from streaming.events import Delta


async def complete_text(engine: Engine, request: Request, body: CompletionRequest, *, keep_alive_s: float) -> Response:
    """Go on from a text. Raises StreamingError while there still is a status to be chosen."""
    answer = await begin(engine, request, body, body.text, body.sampling(), body.user)
    return await respond(_TextForm(answer, body.text if body.echo else ""), request, body, keep_alive_s=keep_alive_s)


class _TextForm:
    """`echo` comes before what is new. A text has no reasoning of its own: whatever the model writes belongs to it."""

    def __init__(self, answer: Answer, echo: str) -> None:
        self.answer = answer
        self._id = f"cmpl-{answer.name}"
        self._echo = echo

    def whole(self) -> TextCompletion:
        answer = self.answer
        completion = self._completion(self._echo + "".join([*answer.reasoning, *answer.text]), answer.finish_reason)
        completion.usage = answer.usage
        return completion

    def first(self) -> TextCompletion | None:
        return self._completion(self._echo) if self._echo else None

    def piece(self, delta: Delta) -> TextCompletion:
        return self._completion(delta.text)

    def last(self) -> TextCompletion:
        return self._completion("", self.answer.finish_reason)

    def totals(self) -> TextCompletion:
        completion = self._completion("")
        completion.choices, completion.usage = [], self.answer.usage
        return completion

    def _completion(self, text: str, finish_reason: FinishReason | None = None) -> TextCompletion:
        choice = TextChoice(index=0, text=text, finish_reason=finish_reason, logprobs=None)
        if self.answer.stopped_by is not None:
            choice.stop_reason = self.answer.stopped_by
        return TextCompletion(
            id=self._id,
            object="text_completion",
            created=self.answer.created,
            model=self.answer.model,
            choices=[choice],
        )
