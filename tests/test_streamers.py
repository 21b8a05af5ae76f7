"""Streaming around a `generate` of one's own, with a tiny random model."""

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

from streaming.streamers import (
    BeamStreamer,
    GenerationCancelled,
    IteratorStreamer,
    PrintStreamer,
    StreamCallback,
    generate_stream,
)
from tests import tokenizers
from tests.tiny import tiny_model

PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tokenizers.byte_level_bpe()


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    return tiny_model(tokenizer)


@pytest.fixture
def inputs(tokenizer: PreTrainedTokenizerFast) -> dict[str, torch.Tensor]:
    return dict(tokenizer([PROMPT], return_tensors="pt"))


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


class Failing(StoppingCriteria):
    """Raises at the fourth token, as a model can that runs out of memory."""

    def __init__(self) -> None:
        self.error = RuntimeError("out of memory at the fourth token")
        self.steps = 0

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        self.steps += 1
        if self.steps == 4:
            raise self.error
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def answer_ids(model: LlamaForCausalLM, inputs: dict[str, torch.Tensor], **kwargs: Any) -> list[int]:
    ids: list[int] = model.generate(**inputs, do_sample=False, **kwargs)[0, inputs["input_ids"].shape[1] :].tolist()
    return ids


def decoded(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def row(*ids: int) -> torch.Tensor:
    return torch.tensor([ids])


# -- generate_stream


@pytest.mark.parametrize("kwargs", [{}, {"prompt_lookup_num_tokens": 3}], ids=["token by token", "prompt lookup"])
def test_the_text_joined_is_the_decoded_answer(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor], kwargs: Any
) -> None:
    """Of exactly what generate gives, without the prompt; speculation hands over several ids at once."""
    expected = decoded(tokenizer, answer_ids(model, inputs, max_new_tokens=40, **kwargs))
    with generate_stream(model, tokenizer, **inputs, do_sample=False, max_new_tokens=40, **kwargs) as texts:
        pieces = list(texts)
    assert "".join(pieces) == expected
    assert len(pieces) > 5
    assert PROMPT not in expected


def test_twenty_in_a_row(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    expected = decoded(tokenizer, answer_ids(model, inputs, max_new_tokens=8))
    for _ in range(20):
        with generate_stream(model, tokenizer, **inputs, do_sample=False, max_new_tokens=8) as texts:
            assert "".join(texts) == expected


def test_an_exception_in_the_model_reaches_the_reader(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    """transformers 22576: generate calls `end` only when all goes well, so the reader of an ordinary streamer waits
    for ever. Here the text so far comes (three tokens: the fourth is not handed over), then the exception itself."""
    failing = Failing()
    seen: list[str] = []
    with (
        pytest.raises(RuntimeError, match="fourth token") as caught,
        generate_stream(
            model, tokenizer, **inputs, do_sample=False, max_new_tokens=9, stopping_criteria=[failing]
        ) as texts,
    ):
        seen.extend(texts)
    assert caught.value is failing.error
    assert "".join(seen) == decoded(tokenizer, answer_ids(model, inputs, max_new_tokens=3))
    assert list(texts) == [], "an iteration that is over stays over"


def test_an_exception_is_raised_on_leaving_if_nobody_has_read_up_to_it(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    with (
        pytest.raises(ValueError, match="nonsense"),
        generate_stream(model, tokenizer, **inputs, nonsense=True),
    ):
        pass


def test_an_exception_after_the_end_is_not_lost(tokenizer: PreTrainedTokenizerFast) -> None:
    """generate still works on its return value after `end`."""

    class Model:
        def generate(self, streamer: IteratorStreamer) -> None:
            streamer.put(row(5, 6))
            streamer.end()
            raise MemoryError("no room for the result")

    with pytest.raises(MemoryError, match="no room"), generate_stream(Model(), tokenizer) as texts:
        list(texts)


def test_leaving_early_stops_the_model_within_a_step(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    inputs: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader leaves while the model is in its fifth step, and the model is held there until then: no sixth."""
    in_fifth, left = threading.Event(), threading.Event()
    steps: list[list[int]] = []

    def step(ids: list[int]) -> None:
        steps.append(ids)
        if len(steps) == 5:
            in_fifth.set()
            left.wait()

    arguments = {**inputs, "max_new_tokens": 400, "min_new_tokens": 400, "stopping_criteria": [StreamCallback(step)]}
    with generate_stream(model, tokenizer, **arguments) as texts:
        cancel = texts.cancel
        monkeypatch.setattr(texts, "cancel", lambda: (cancel(), left.set()))
        next(texts)
        in_fifth.wait()
    assert len(steps) == 5
    assert not any(thread.name == "generate_stream" for thread in threading.enumerate())


def test_the_reader_s_own_exception_stops_the_model_too(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    def read(texts: Iterator[str]) -> None:
        next(texts)
        raise KeyError("mine")

    with (
        pytest.raises(KeyError, match="mine"),
        generate_stream(model, tokenizer, **inputs, max_new_tokens=400, min_new_tokens=400) as texts,
    ):
        read(texts)


def test_a_batch_is_refused_in_words(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    inputs = tokenizer([PROMPT, PROMPT], return_tensors="pt")
    with (
        pytest.raises(ValueError, match="this batch has 2"),
        generate_stream(model, tokenizer, **inputs, max_new_tokens=4) as texts,
    ):
        list(texts)


def test_stopping_criteria_stop_strings_and_a_streamer_of_one_s_own_are_respected(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    """Any object that has `put` and `end` is a streamer."""

    class Counting:
        def __init__(self) -> None:
            self.shapes: list[tuple[int, ...]] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.shapes.append(tuple(value.shape))

        def end(self) -> None:
            self.ended = True

    own = Counting()
    ids = answer_ids(model, inputs, max_new_tokens=10)
    stop = decoded(tokenizer, ids[:7])[-3:]
    callback = StreamCallback(lambda _: len(own.shapes) == 6)  # the prompt and five tokens
    arguments = {**inputs, "do_sample": False, "max_new_tokens": 10, "stop_strings": [stop]}
    with generate_stream(model, tokenizer, **arguments, streamer=own, stopping_criteria=[callback]) as texts:
        assert "".join(texts) == decoded(tokenizer, ids[:6])
    assert own.shapes == [tuple(inputs["input_ids"].shape), *[(1,)] * 6]
    assert own.ended


# -- IteratorStreamer


def test_a_text_streams_while_the_model_goes_on(tokenizer: PreTrainedTokenizerFast) -> None:
    """The shapes of generate: the prompt as [1, L], then [1], or [n] and [1, n] under speculation."""
    ids = tokenizer("Hello there 👋🏽", add_special_tokens=False)["input_ids"]
    streamer = IteratorStreamer(tokenizer)
    streamer.put(row(7, 8, 9))
    for token_id in ids[:2]:
        streamer.put(torch.tensor([token_id]))
    assert next(streamer) + next(streamer) == decoded(tokenizer, ids[:2])
    streamer.put(torch.tensor(ids[2:4]))
    streamer.put(torch.tensor([ids[4:]]))
    streamer.end()
    streamer.end()
    assert "".join(streamer) == decoded(tokenizer, ids[2:])
    assert list(streamer) == []


def test_the_prompt_can_be_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("Hello there", add_special_tokens=False)["input_ids"]
    streamer = IteratorStreamer(tokenizer, skip_prompt=False)
    streamer.put(row(*ids[:-1]))
    streamer.put(torch.tensor(ids[-1:]))
    streamer.end()
    assert "".join(streamer) == "Hello there"


def test_half_a_character_comes_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("a🦙", add_special_tokens=False)["input_ids"][:-1]
    streamer = IteratorStreamer(tokenizer)
    streamer.put(row(7))
    streamer.put(row(*ids))
    streamer.end()
    assert list(streamer) == ["a", "\ufffd"]


def test_failing_gives_the_text_so_far_and_then_the_exception(tokenizer: PreTrainedTokenizerFast) -> None:
    error = RuntimeError("the model broke")
    streamer = IteratorStreamer(tokenizer, skip_prompt=False)
    streamer.put(row(*tokenizer("Hello")["input_ids"]))
    streamer.fail(error)
    assert next(streamer) == "Hello"
    with pytest.raises(RuntimeError, match="the model broke") as caught:
        next(streamer)
    assert caught.value is error


def test_cancelling_ends_the_iteration_and_generate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    """Also where the reader waits and no token comes any more; and before the first one."""
    streamer = IteratorStreamer(tokenizer)
    streamer.cancel()
    streamer.cancel()
    assert list(streamer) == []
    with pytest.raises(GenerationCancelled):
        model.generate(**inputs, streamer=streamer, max_new_tokens=5)


def test_a_streamer_serves_one_generate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: dict[str, torch.Tensor]
) -> None:
    """transformers hands the prompt over before it checks lengths and stop strings: a request that then fails leaves
    a reused streamer one prompt behind, and the next request's system prompt is shown as if it were the answer."""
    streamer = IteratorStreamer(tokenizer)
    model.generate(**inputs, streamer=streamer, max_new_tokens=2)
    with pytest.raises(RuntimeError, match="make a new one"):
        model.generate(**inputs, streamer=streamer, max_new_tokens=2)


def test_silence_can_have_a_limit(tokenizer: PreTrainedTokenizerFast) -> None:
    streamer = IteratorStreamer(tokenizer, timeout=0.01)
    with pytest.raises(TimeoutError, match=r"nothing for 0\.01 seconds"):
        next(streamer)


# -- PrintStreamer


def test_printing_to_the_terminal_and_to_a_file(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    inputs: dict[str, torch.Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = decoded(tokenizer, answer_ids(model, inputs, max_new_tokens=12)) + "\n"
    model.generate(**inputs, streamer=PrintStreamer(tokenizer), do_sample=False, max_new_tokens=12)
    assert capsys.readouterr().out == expected
    file = io.StringIO()
    model.generate(**inputs, streamer=PrintStreamer(tokenizer, file), do_sample=False, max_new_tokens=12)
    assert file.getvalue() == expected
    file = io.StringIO()
    whole = PrintStreamer(tokenizer, file, skip_prompt=False)
    model.generate(**inputs, streamer=whole, do_sample=False, max_new_tokens=12)
    assert file.getvalue() == PROMPT + expected


# -- StreamCallback


@pytest.mark.parametrize("speculation", [False, True])
def test_a_callback_gets_the_ids_of_each_step(
    model: LlamaForCausalLM, inputs: dict[str, torch.Tensor], speculation: bool
) -> None:
    steps: list[list[int]] = []
    kwargs: dict[str, Any] = {"prompt_lookup_num_tokens": 4} if speculation else {}
    callback = StreamCallback(steps.append, inputs["input_ids"].shape[1] if speculation else None)
    expected = answer_ids(model, inputs, max_new_tokens=40)
    assert answer_ids(model, inputs, max_new_tokens=40, stopping_criteria=[callback], **kwargs) == expected
    assert [token_id for step in steps for token_id in step] == expected
    assert len(steps) == len(expected) or speculation


def test_a_callback_stops_by_true_alone(model: LlamaForCausalLM, inputs: dict[str, torch.Tensor]) -> None:
    """What a print, a write or an append returns stops nothing."""
    steps: list[list[int]] = []

    def third(ids: list[int]) -> bool | int:
        steps.append(ids)
        return len(steps) == 3 or (len(steps) == 2 and 7)

    expected = answer_ids(model, inputs, max_new_tokens=3)
    criteria = StoppingCriteriaList([StreamCallback(third)])
    assert answer_ids(model, inputs, max_new_tokens=9, stopping_criteria=criteria) == expected


def test_a_callback_leaves_by_its_exception_and_serves_one_generate(
    model: LlamaForCausalLM, inputs: dict[str, torch.Tensor]
) -> None:
    def angry(_: list[int]) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        model.generate(**inputs, max_new_tokens=5, stopping_criteria=[StreamCallback(angry)])
    callback = StreamCallback(lambda _: None)
    model.generate(**inputs, max_new_tokens=3, stopping_criteria=[callback])
    with pytest.raises(RuntimeError, match="one call of generate"):
        model.generate(**inputs, max_new_tokens=3, stopping_criteria=[callback])


# -- beams


@pytest.mark.parametrize("said_by", ["the call", "a config", "the model"])
def test_beams_stream_what_they_agree_on(tokenizer: PreTrainedTokenizerFast, inputs: Any, said_by: str) -> None:
    """generate refuses a streamer with beams; the text is the one that it gives without."""
    model = tiny_model(tokenizer)
    config = GenerationConfig(num_beams=4, max_new_tokens=12, eos_token_id=tokenizer.eos_token_id, pad_token_id=0)
    expected = decoded(tokenizer, answer_ids(model, inputs, num_beams=4, max_new_tokens=12))
    how: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 12}
    if said_by == "a config":
        how = {"generation_config": config}
    elif said_by == "the model":
        model.generation_config = config
        how = {}
    tails = []
    with generate_stream(model, tokenizer, **inputs, **how) as texts:
        pieces = []
        for piece in texts:
            pieces.append(piece)
            assert isinstance(texts, BeamStreamer)
            tails.append((len("".join(pieces)), texts.tentative))
    assert "".join(pieces) == expected
    assert tails[-1] == (len(expected), "")
    assert any(expected[place:].startswith(tail) for place, tail in tails if tail), "the winner led at some time"


def test_a_beam_streamer_around_a_call_of_ones_own(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: Any
) -> None:
    """All of what generate can return is returned, and the best of several sequences is the one that is streamed."""
    how: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12, "output_scores": True}
    beams = BeamStreamer(tokenizer)
    made = model.generate(**inputs, **how, custom_generate=beams, return_dict_in_generate=True)
    best = made.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert "".join(beams) == decoded(tokenizer, best)
    assert made.sequences.shape[0] == len(made.sequences_scores) == 2
    with pytest.raises(RuntimeError, match="has ended"):
        model.generate(**inputs, **how, custom_generate=beams)


def test_leaving_ends_beams_within_a_step(tokenizer: PreTrainedTokenizerFast, inputs: Any) -> None:
    model = tiny_model(tokenizer)
    steps: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda *_: steps.append(1))
    with generate_stream(model, tokenizer, **inputs, num_beams=2, max_new_tokens=400) as texts:
        next(texts)
    assert len(steps) < 300
    assert list(texts) == []


def test_beams_in_groups_are_refused(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, inputs: Any) -> None:
    with (
        pytest.raises(ValueError, match="groups"),
        generate_stream(model, tokenizer, **inputs, max_new_tokens=4, num_beams=4, num_beam_groups=2) as texts,
    ):
        list(texts)
