"""One more turn of a conversation: where it comes, what the engine gets to read, and what is put down in the end.

Works on a conversation and a run's view; knows neither engines nor owners. Whoever holds the conversation guards it.
"""

from dataclasses import dataclass, replace

from streaming.attachments import Attachment, check_attachments
from streaming.conversation import AnswerState, Conversation, Node, Settings, as_read
from streaming.errors import InvalidRequest
from streaming.events import Finished
from streaming.messages import Message
from streaming.runs import View


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer after the message `end`, and after what the user says next (None: nothing); or one that goes on:
    `unfinished`, as it stands."""

    end: str | None
    text: str | None = None
    attachments: tuple[Attachment, ...] = ()
    unfinished: Node | None = None

    @property
    def said(self) -> Message | None:
        """What the answer begins with, if it has a beginning."""
        message = self.unfinished.message if self.unfinished is not None else None
        return message if message is not None and (message.content or message.reasoning) else None

    def prompt(self, conversation: Conversation, settings: Settings) -> list[Message]:
        """What the engine gets to read; the answer's own beginning comes last, if it has one."""
        messages = [Message("system", settings.system)] if settings.system.strip() else []
        messages += conversation.messages(self.end)
        if self.text is not None:
            check_attachments(self.attachments)
            if not self.text.strip() and not self.attachments:
                raise InvalidRequest("There is nothing to answer: the message is empty.", "messages")
            messages.append(as_read(Message("user", self.text), self.attachments))
        return messages if self.said is None else [*messages, self.said]

    def begin(self, conversation: Conversation, model: str) -> str:
        """Open the answer at its place, as the head. Returns its id."""
        if self.unfinished is not None:
            return conversation.go_on(self.unfinished.id, model).id
        question_id = self.end or ""
        if self.text is not None:
            question_id = conversation.ask(self.end, self.text, self.attachments).id
        return conversation.begin_answer(question_id, model).id

    def put_down(self, conversation: Conversation, answer_id: str, view: View) -> None:
        """What there is of the answer: so far, or at its end."""
        finished, earlier = view.finished, self.unfinished.finished if self.unfinished is not None else None
        conversation.finish_answer(
            answer_id,
            Message("assistant", view.text, view.reasoning),
            state_of(view),
            error=str(view.error) if view.error else "",
            thought_s=view.thought_s,
            guessed=view.guessed,
            finished=_both(earlier, finished) if earlier is not None and finished is not None else finished,
        )


def state_of(view: View) -> AnswerState:
    """How an answer stands, in the words that are kept."""
    if not view.ended:
        return "running"
    if view.finished is None:
        return "failed"
    cancelled: AnswerState = "stopped" if view.stopped else "interrupted"
    states: dict[str, AnswerState] = {"stop": "complete", "length": "cut", "cancelled": cancelled}
    return states[view.finished.reason]


def _both(first: Finished, second: Finished) -> Finished:
    """The figures of an answer that went on: it has the first part's prompt, and the tokens and guesses of both."""
    usage = replace(
        second.usage,
        prompt_tokens=first.usage.prompt_tokens,
        completion_tokens=first.usage.completion_tokens + second.usage.completion_tokens,
        proposed_tokens=first.usage.proposed_tokens + second.usage.proposed_tokens,
        accepted_tokens=first.usage.accepted_tokens + second.usage.accepted_tokens,
    )
    timings = replace(second.timings, queued_s=first.timings.queued_s, ttft_s=first.timings.ttft_s)
    return replace(second, usage=usage, timings=timings)
