"""Small synthetic tokenizers, one of each kind that decodes differently. Made in memory: no file, no network."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "Hi 👋🏽 there",
    "a 👨‍👩‍👧‍👦 b 🇨🇭 c",
    "기습니다 그리고 끝.",
    "你好，世界。Hello 再见",
    "はい。そうですね。ありがとう",
    "https://example.org/a/b?c=d&e=f#g-h_i",
    '{"a":[1,2,{"b":null}],"c":"d"}',
    "foo(bar)[0];\nif(x){y();}\n\treturn  z\n",
    "  two leading, trailing two  ",
    "The quick brown fox jumps over the lazy dog. One, two, three; why not? It's fine: we're here.",
    "é ñ กำลัง ที่นี่ हिन्दी",
    "مرحبا بالعالم 123 שלום",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_bpe(vocab_size: int = 420) -> PreTrainedTokenizerFast:
    """GPT-2's way: tokens are pieces of UTF-8, some of which end inside a character, as " \\xf0\\x9f" does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return _chat(tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama 2's way (sentencepiece): a token is whole characters, or else one byte as <0xNN>; the first space goes."""
    words = [("t", "h"), ("th", "e"), ("▁", "the"), ("o", "n"), ("▁", "a"), ("▁", "▁"), ("▁▁", "▁▁"), ("e", "r")]
    characters = [chr(code) for code in range(33, 127)] + ["▁", "é", "你", "好", "は", "い"]
    vocabulary = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    vocabulary += ["".join(pair) for pair in words]
    model = models.BPE(vocab=numbered(vocabulary), merges=words, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _chat(tokenizer, unk_token="<unk>")


def word_level() -> PreTrainedTokenizerFast:
    """One token a word, and no decoder at all: words are joined by spaces."""
    words = sorted({word for text in TEXTS for word in text.split()})
    tokenizer = Tokenizer(models.WordLevel(numbered(["<unk>", *SPECIAL, *words]), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _chat(tokenizer, unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    """T5's way: the first token of a text loses its spaces."""
    pieces = ["<unk>", *SPECIAL, "▁", "▁▁", "▁a", "a", "▁the", "er", "é", "👋", "."]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(rank)) for rank, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _chat(tokenizer, unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """BERT's way: ##ing goes on with a word, and the decoder tidies the space before a full stop away."""
    pieces = ["<unk>", *SPECIAL, "a", "##a", "run", "##ning", "##", "#", ".", ",", "'", "##s", "n't", "do", "你"]
    tokenizer = Tokenizer(models.WordPiece(numbered(pieces), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _chat(tokenizer, unk_token="<unk>")


def end_of_word() -> PreTrainedTokenizerFast:
    """The first GPT's way: </w> ends a word, and becomes a space once another token follows."""
    pieces = ["<unk>", *SPECIAL, "a</w>", "a", "run", "ning</w>", "</w>", ".</w>", "é</w>"]
    tokenizer = Tokenizer(models.BPE(numbered(pieces), [], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return _chat(tokenizer, unk_token="<unk>")


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer in plain Python: one token for each of `pieces`, put together by the subclass."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        super().__init__(eos_token="<|im_end|>", unk_token="<|endoftext|>", pad_token="<|endoftext|>")

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def get_vocab(self) -> dict[str, int]:
        return numbered(self.pieces) | self.added_tokens_encoder

    def _tokenize(self, text: str) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.pieces.index(token) if token in self.pieces else 0

    def _convert_id_to_token(self, index: int) -> str:
        return self.pieces[index]


class SlowBytes(SlowTokenizer):
    """One token a byte, as the plain GPT-2 and tiktoken tokenizers end up with: an invalid byte becomes U+FFFD."""

    def __init__(self) -> None:
        super().__init__([*SPECIAL, *(f"{byte:02x}" for byte in range(256))])

    def _tokenize(self, text: str) -> list[str]:
        return [f"{byte:02x}" for byte in text.encode()]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return b"".join(self.bytes_of(token) for token in tokens).decode(errors="replace")

    @staticmethod
    def bytes_of(token: str) -> bytes:
        return token.encode() if token in SPECIAL else bytes.fromhex(token)


class SlowSilentBytes(SlowBytes):
    """ByT5's way: an invalid byte, and so half a character, is left out."""

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return b"".join(self.bytes_of(token) for token in tokens).decode(errors="ignore")


class SlowPieces(SlowTokenizer):
    """Plain sentencepiece: spaces at both ends of the text are cut off."""

    def __init__(self) -> None:
        super().__init__([*SPECIAL, "▁", "▁▁", "▁a", "a", "b▁", "é", "你", "."])

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).replace("▁", " ").strip()


def with_added_tokens(make: Callable[[], PreTrainedTokenizerFast], *tokens: str) -> PreTrainedTokenizerFast:
    tokenizer = make()
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def two_decoders() -> PreTrainedTokenizerFast:
    """Byte-level, and then something else: a decoder of no known kind."""
    tokenizer = byte_level_bpe()
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


class Shouting(PreTrainedTokenizerFast):
    """A tokenizer class that decodes in its own way, as Whisper's and CodeGen's do."""

    def _decode(self, *args: Any, **kwargs: Any) -> str:
        return super()._decode(*args, **kwargs).upper()


def own_decode() -> PreTrainedTokenizerFast:
    return Shouting(
        tokenizer_object=byte_level_bpe().backend_tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


KINDS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "byte-level BPE": byte_level_bpe,
    "byte-level BPE, added tokens": lambda: with_added_tokens(byte_level_bpe, "é", "x y", "<tool>", "你"),
    "byte fallback": byte_fallback,
    "byte fallback, added tokens": lambda: with_added_tokens(byte_fallback, "<tool>", "▁odd", " "),
    "word level": word_level,
    "metaspace": metaspace,
    "word piece": word_piece,
    "end of word": end_of_word,
    "plain Python, silent bytes": SlowSilentBytes,
    "plain Python, pieces": SlowPieces,
    "plain Python, bytes": SlowBytes,
    "two decoders": two_decoders,
    "own decode": own_decode,
}


@cache
def made(kind: str) -> PreTrainedTokenizerBase:
    """One tokenizer a kind for all tests that do not change it."""
    return KINDS[kind]()


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _chat(tokenizer: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", **names
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
