"""POST /v1/chat/completions: a conversation and its answer in OpenAI's form."""

from fastapi import Request, Response

from streaming.api.answering import Answer, begin, respond
from streaming.api.answers import AnswerMessage, ChatChunk, ChatCompletion, Choice, ChunkChoice, Delta, FinishReason
from streaming.api.requests import ChatRequest
from streaming.engines.base import Engine
from streaming.events import Delta as Piece
from streaming.events import ReasoningDelta


async def complete_chat(engine: Engine, request: Request, body: ChatRequest, *, keep_alive_s: float) -> Response:
    """Answer a conversation. Raises StreamingError while there still is a status to be chosen."""
    user = body.user or body.safety_identifier
    answer = await begin(engine, request, body, body.conversation(), body.sampling(), user)
    return await respond(_ChatForm(answer), request, body, keep_alive_s=keep_alive_s)


class _ChatForm:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._id = f"chatcmpl-{answer.name}"

    def whole(self) -> ChatCompletion:
        answer = self.answer
        message = AnswerMessage(role="assistant", content="".join(answer.text))
        if answer.reasoning:
            message.reasoning_content = "".join(answer.reasoning)
        choice = Choice(index=0, message=message, finish_reason=answer.finish_reason, logprobs=None)
        if answer.stopped_by is not None:
            choice.stop_reason = answer.stopped_by
        return ChatCompletion(
            id=self._id,
            object="chat.completion",
            created=answer.created,
            model=answer.model,
            choices=[choice],
            usage=answer.usage,
        )

    def first(self) -> ChatChunk:
        return self._chunk(Delta(role="assistant", content=""))

    def piece(self, delta: Piece) -> ChatChunk:
        if isinstance(delta, ReasoningDelta):
            return self._chunk(Delta(reasoning_content=delta.text))
        return self._chunk(Delta(content=delta.text))

    def last(self) -> ChatChunk:
        return self._chunk(Delta(), self.answer.finish_reason)

    def totals(self) -> ChatChunk:
        chunk = self._chunk(None)
        chunk.usage = self.answer.usage
        return chunk

    def _chunk(self, delta: Delta | None, finish_reason: FinishReason | None = None) -> ChatChunk:
        """None: a chunk without a choice."""
        answer = self.answer
        choices = [ChunkChoice(index=0, delta=delta, finish_reason=finish_reason)] if delta is not None else []
        if choices and answer.stopped_by is not None:
            choices[0].stop_reason = answer.stopped_by
        return ChatChunk(
            id=self._id, object="chat.completion.chunk", created=answer.created, model=answer.model, choices=choices
        )
