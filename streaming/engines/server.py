"""An OpenAI-compatible server as a client sees it: its models, and the pieces of its answers. Its errors are ours.

Knows no generations, no stop strings and no retries: each call is one try. Runs on one event loop; a task that is
cancelled closes its connection, which is how such servers are told to stop.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import openai

from streaming.config import is_loopback
from streaming.engines.refusals import from_openai
from streaming.errors import GenerationFailed, ServerRefused, ServerUnavailable
from streaming.events import Usage
from streaming.messages import Message, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds until a server is given up: to connect, to list its models, to begin an answer (it may have a queue of
    its own), and between two pieces of one."""

    connect_s: float = 5.0
    list_s: float = 10.0
    first_s: float = 600.0
    next_s: float = 120.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`context_tokens` is 0 where the server does not tell."""

    name: str
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """More of an answer, and near its end how it ended (`finish`, and by which stop string) and what it cost."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    stopped_by: str | None = None
    usage: Usage | None = None


class Server:
    """`async with Server(...)`. Raises StreamingErrors only; the client's own exception is their `__cause__`."""

    def __init__(self, base_url: str, api_key: str | None = None, patience: Patience | None = None) -> None:
        self._base_url = base_url
        self._patience = patience = patience or Patience()
        # What is not given here, the client would take from the environment, and send it to whom it was not meant for.
        unnamed: Any = {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()}
        self._headers: Any = {} if api_key else {"Authorization": openai.Omit()}
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",
            default_headers=unnamed,
            max_retries=0,
            timeout=openai.Timeout(None, connect=patience.connect_s),
            http_client=openai.DefaultAsyncHttpx2Client(trust_env=not is_loopback(urlsplit(base_url).hostname or "")),
        )
        self._tells_usage = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def models(self) -> tuple[ServedModel, ...]:
        """What the server lists. Raises ServerUnavailable, or ServerRefused where something else is at the address."""
        try:
            async with asyncio.timeout(self._patience.list_s):
                listed = [_served(card) async for card in self._client.models.list(extra_headers=self._headers)]
        except openai.APIError as error:
            raise from_openai(error, self._base_url) from error
        except TimeoutError as error:
            raise ServerUnavailable(f"The server at {self._base_url} does not answer.") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ServerRefused(
                f"What answers at {self._base_url} does not list its models as OpenAI's servers do: "
                "is --base-url right? It ends in /v1 as a rule."
            ) from error
        return tuple(listed)

    async def answer(
        self,
        model: str,
        prompt: str | Sequence[Message],
        sampling: Sampling,
        max_new_tokens: int,
        *,
        continues: bool = False,
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of one answer, as they come, or of what goes on from a text, or from the last message.

        Closing the iterator hangs up.
        """
        clock = asyncio.get_running_loop().time
        deadline, begun = clock() + self._patience.first_s, False
        try:
            async with asyncio.timeout_at(deadline):
                stream = await self._open(_body(model, prompt, sampling, max_new_tokens, continues))
            async with _hanging_up(stream) as chunks:
                while True:
                    async with asyncio.timeout_at(deadline):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    piece = _piece(chunk)
                    begun = begun or bool(piece.text or piece.reasoning)
                    yield piece
                    deadline = clock() + self._patience.next_s if begun else deadline
        except openai.APIError as error:
            raise from_openai(error, self._base_url) from error
        except TimeoutError as error:
            raise GenerationFailed(self._silence(begun)) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise GenerationFailed(f"What the server at {self._base_url} sent is not in OpenAI's form.") from error

    async def _open(self, body: dict[str, Any]) -> Any:
        completions: Any = self._client.completions if "prompt" in body else self._client.chat.completions
        body = body | {"extra_headers": self._headers}
        if self._tells_usage:
            try:
                return await completions.create(**body, stream=True, stream_options={"include_usage": True})
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if "stream_options" not in str(error):
                    raise
                self._tells_usage = False  # and never asked for it again
        return await completions.create(**body, stream=True)

    def _silence(self, begun: bool) -> str:
        if begun:
            return f"The server went silent in the middle of this answer, for {self._patience.next_s:.0f} seconds."
        return f"The server has not begun to answer within {self._patience.first_s:.0f} seconds."


@asynccontextmanager
async def _hanging_up(stream: openai.AsyncStream[Any]) -> AsyncGenerator[AsyncIterator[Any], None]:
    """The chunks of a response, and its end. The client closes the connection only, and leaves its generators, one in
    another, to the collector, which may run in another thread while this one is closing them: so each is run out, which
    a closed connection lets happen at once.
    """
    chunks = aiter(stream)
    try:
        yield chunks
    finally:
        await stream.close()
        with suppress(openai.APIError, AttributeError, TypeError, ValueError):  # it was cut, and what it said is told
            async for _ in chunks:
                pass


def _body(
    model: str, prompt: str | Sequence[Message], sampling: Sampling, max_new_tokens: int, continues: bool
) -> dict[str, Any]:
    """The request. What is not set is not sent: some servers refuse fields of others, whatever their value."""
    settings = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    extensions: dict[str, Any] = {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if isinstance(prompt, str):
        asked: dict[str, Any] = {"prompt": prompt}
    else:
        asked = {"messages": [{"role": message.role, "content": message.content} for message in prompt]}
        extensions["chat_template_kwargs"] = dict(sampling.chat_template_kwargs) or None
    if continues:
        extensions |= {"add_generation_prompt": False, "continue_final_message": True}
    return {
        "model": model,
        **asked,
        "max_tokens": max_new_tokens,
        **{name: value for name, value in settings.items() if value is not None},
        "extra_body": {name: value for name, value in extensions.items() if value is not None},
    }


def _served(card: Any) -> ServedModel:
    context = getattr(card, "max_model_len", None) or getattr(card, "context_length", None)
    return ServedModel(_text(card.id) or _refuse(card), _count(context))


def _piece(chunk: Any) -> Piece:
    usage = _usage(chunk.usage) if getattr(chunk, "usage", None) else None
    if not chunk.choices:
        return Piece(usage=usage)
    choice = chunk.choices[0]
    delta = getattr(choice, "delta", None) or choice  # of a text that goes on there is no delta, but the text itself
    reason = getattr(choice, "stop_reason", None)  # some say which stop string it was, or which token id
    return Piece(
        text=_text(getattr(delta, "content", None) or getattr(delta, "text", None)),
        reasoning=_text(getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)),
        finish=_text(choice.finish_reason) or None,
        stopped_by=reason if isinstance(reason, str) else None,
        usage=usage,
    )


def _usage(usage: Any) -> Usage:
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        prompt_tokens=_count(usage.prompt_tokens),
        cached_tokens=_count(getattr(details, "cached_tokens", None)),
        completion_tokens=_count(usage.completion_tokens),
        dropped_messages=_count(getattr(usage, "dropped_messages", None)),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else _refuse(value)


def _refuse(value: Any) -> str:
    raise TypeError(f"a text was expected, not {value!r:.80}")
