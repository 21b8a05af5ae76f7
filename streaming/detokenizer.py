"""Token ids to text while they arrive: O(1) a token, never half a character, nothing complete withheld.

The pieces joined are `tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)`: any ids.
Knows no model and no stop strings. One object for one text, used by one thread at a time.
"""

import copy
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_INVALID = "\ufffd"
_TAIL = 32  # ids before a text that say how it begins
_MOST_INVALID = 3  # an unfinished character has at most three bytes, and shows as at most as many U+FFFD
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_UTF8 = getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one sequence of token ids, piece by piece, without special tokens unless they are asked for.

    With `after`, the text goes on from those ids, whose own text is out already: both joined are the decode of both,
    so that a decoder that cuts the space off a text's beginning does not cut it out of the middle of one.

    Three kinds of tokenizers are told apart by their decoder:

    - Byte-level BPE (GPT-2, Llama 3, Qwen): each token is bytes, so an incremental UTF-8 decoder is exact.
    - Sentencepiece, word-level, WordPiece: a short window of ids is decoded again with each token, as TGI and vLLM do.
      With byte fallback, one invalid byte turns the whole run of <0xNN> tokens around it into U+FFFD: a run's text
      waits for the run's end, or for the byte that spoils it.
    - Tokenizers in plain Python, or with a decoder that is not known: the window too, and a trailing U+FFFD waits for
      the bytes that may complete it. A decoder that changes text further back than a token cannot be streamed.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        skip_special_tokens: bool = True,
        after: Sequence[int] = (),
    ) -> None:
        self._reader = _reader(tokenizer, skip_special_tokens)
        if after:
            self.add(_tail(tokenizer, after))
            self.finish()

    def add(self, ids: int | list[int]) -> str:
        """The text that has become certain with these ids; often empty."""
        if isinstance(ids, int):
            return self._reader.add(ids)
        return "".join(map(self._reader.add, ids))

    def finish(self) -> str:
        """What was withheld: the rest of a character that never came shows as the full decode shows it."""
        return self._reader.finish()

    def fork(self) -> Self:
        """Another one that goes on from here, so that ids can be tried out."""
        made = copy.copy(self)
        made._reader = self._reader.fork()
        return made


def _tail(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int]) -> list[int]:
    """The last of the ids, and so many that they do not begin inside a character, if the others do not."""
    length = _TAIL
    while length < len(ids) and _INVALID in str(tokenizer.decode(list(ids[-length:]))):
        length *= 2
    return list(ids[-length:])


class _Reader(Protocol):
    def add(self, token_id: int) -> str: ...

    def finish(self) -> str: ...

    def fork(self) -> "_Reader": ...


def _reader(tokenizer: "PreTrainedTokenizerBase", skip_special_tokens: bool) -> _Reader:
    """One that knows of no special tokens shows all of them."""
    if not _decodes_in_rust(tokenizer):
        return _Window(tokenizer, frozenset(tokenizer.all_special_ids if skip_special_tokens else ()))
    backend: Tokenizer = tokenizer.backend_tokenizer
    added = tokenizer.added_tokens_decoder.items() if skip_special_tokens else ()
    special = frozenset(index for index, token in added if token.special)
    parts = _decoder_parts(backend)
    if parts == ["ByteLevel"]:
        return _Bytes(backend, special)
    if "ByteLevel" in parts:
        return _Window(tokenizer, special)
    return _TokenWindow(tokenizer, special, backend, byte_fallback="ByteFallback" in parts)


def _decodes_in_rust(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether `decode` is the Rust backend's, and not a method that some model's tokenizer class put in its place."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and type(tokenizer).decode is PreTrainedTokenizerBase.decode
        and type(tokenizer)._decode is PreTrainedTokenizerFast._decode
    )


def _decoder_parts(backend: Tokenizer) -> list[str]:
    """The names of the decoders that a backend runs one after the other."""

    def flatten(state: dict[str, Any]) -> list[str]:
        if state["type"] == "Sequence":
            return [name for part in state["decoders"] for name in flatten(part)]
        return [state["type"]]

    return flatten(json.loads(backend.decoder.__getstate__())) if backend.decoder else []


class _Bytes:
    """Byte-level BPE: the decoder turns each token into bytes, and all bytes into text, invalid ones into U+FFFD."""

    def __init__(self, backend: Tokenizer, special: frozenset[int]) -> None:
        self._token = backend.id_to_token
        self._special = special
        self._utf8 = _UTF8("replace")

    def add(self, token_id: int) -> str:
        token = self._token(token_id)
        if token is None or token_id in self._special:
            return ""
        return self._utf8.decode(_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)

    def fork(self) -> Self:
        made = copy.copy(self)
        made._utf8 = copy.copy(self._utf8)
        return made


def _bytes(token: str) -> bytes:
    values = _byte_values()
    try:
        return bytes([values[character] for character in token])
    except KeyError:  # an added token that was never spelt in GPT-2's alphabet
        return token.encode()


@cache
def _byte_values() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are their own bytes, the other bytes follow from U+0100 on."""
    alphabet = sorted(ByteLevel.alphabet())
    own = {character: ord(character) for character in alphabet if ord(character) < 256}
    others = sorted(set(range(256)) - set(own.values()))
    return own | dict(zip(alphabet[len(own) :], others, strict=True))


class _Window:
    """Decodes a few ids over and over: a context whose text is out already, and what came after it.

    The context keeps what a decoder does at the beginning of a text, such as cutting off a space, away from new ids.
    """

    _CONTEXTS = (1, 2, 4)  # ids; more than one where a token alone has no text, as one byte of several
    _LONG = 32  # ids: a window that cannot move on (endless invalid bytes) is decoded at growing distances from here

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._ids: list[int] = []
        self._shown = 0  # characters of the window's text that are out
        self._next_look = 0  # the window's length at which it is decoded again

    def add(self, token_id: int) -> str:
        if token_id in self._special:
            return ""
        self._ids.append(token_id)
        return self._look() if len(self._ids) >= self._next_look else ""

    def finish(self) -> str:
        return self._show(self._decode(self._ids))

    def fork(self) -> Self:
        made = copy.copy(self)
        made._ids = self._ids.copy()
        return made

    def _look(self) -> str:
        text = self._decode(self._ids)
        certain = self._certain(text)
        piece = self._show(certain)
        if len(certain) == len(text):
            self._move_on()
        self._next_look = len(self._ids) * 9 // 8 if len(self._ids) > self._LONG else 0
        return piece

    def _certain(self, text: str) -> str:
        """`text` without the U+FFFD at its end that may stand for an unfinished character."""
        length = len(text)
        while length and len(text) - length < _MOST_INVALID and text[length - 1] == _INVALID:
            length -= 1
        return text[:length]

    def _show(self, text: str) -> str:
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece

    def _move_on(self) -> None:
        """Keep as context the fewest last ids that have a text, since only then is the beginning of a text over."""
        for count in self._CONTEXTS:
            if count >= len(self._ids):
                return
            text = self._decode(self._ids[-count:])
            if text:
                self._ids = self._ids[-count:]
                self._shown = len(text)
                return

    def _decode(self, ids: list[int]) -> str:
        skip = bool(self._special)
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))


class _TokenWindow(_Window):
    """A window over tokens of whole characters; and over <0xNN> tokens, where the decoder has byte fallback."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", special: frozenset[int], backend: Tokenizer, *, byte_fallback: bool
    ) -> None:
        super().__init__(tokenizer, special)
        self._token = backend.id_to_token
        self._byte_fallback = byte_fallback
        self._run = _ByteRun()

    def add(self, token_id: int) -> str:
        token = self._token(token_id)
        if token is None or token_id in self._special:
            return ""
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        if byte is None:
            self._run = _ByteRun()
            return super().add(token_id)
        if self._run.spoilt:
            return _INVALID
        self._ids.append(token_id)
        self._run.add(int(byte[1], 16))
        return self._show(self._decode(self._ids)) if self._run.spoilt else ""

    def fork(self) -> Self:
        made = super().fork()
        made._run = self._run.fork()
        return made

    def _certain(self, text: str) -> str:
        return text


class _ByteRun:
    """Adjacent <0xNN> tokens: only if all of them together are UTF-8 are they text. `spoilt`: they never will be."""

    def __init__(self) -> None:
        self._utf8 = _UTF8("strict")
        self.spoilt = False

    def add(self, byte: int) -> None:
        try:
            self._utf8.decode(bytes([byte]))
        except UnicodeDecodeError:
            self.spoilt = True

    def fork(self) -> Self:
        made = copy.copy(self)
        made._utf8 = copy.copy(self._utf8)
        return made
