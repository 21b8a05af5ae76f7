"""A pipeline that streams, beside transformers' own: the same text, live."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaForCausalLM, StoppingCriteria, TextGenerationPipeline

import streaming
from streaming.errors import InvalidRequest
from streaming.pipelines import Piece, StreamingPipeline
from streaming.streamers import StreamCallback
from tests import tokenizers
from tests.plain import cut
from tests.tiny import tiny_folder, tiny_model
from tests.tokenizers import KINDS, made

PROMPT = "The quick brown fox"
CHAT = [{"role": "user", "content": "Why a fox?"}]
BEGUN = [*CHAT, {"role": "assistant", "content": "Because"}]
GREEDY = {"do_sample": False, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> StreamingPipeline:
    return streaming.pipeline("text-generation", model=str(folder))


@pytest.fixture
def fresh(folder: Path) -> StreamingPipeline:
    """One that a test may change, or count the threads of."""
    return streaming.pipeline("text-generation", model=str(folder))


@pytest.fixture(scope="module")
def drafts() -> dict[str, LlamaForCausalLM]:
    """A draft model that the model nearly always agrees with, since it is the same, and one that it hardly does."""
    tokenizer = tokenizers.byte_level_bpe()
    return {"same": tiny_model(tokenizer), "other": tiny_model(tokenizer, seed=7)}


def own_text(pipe: Any, prompt: Any, **settings: Any) -> str:
    [answer] = pipe(prompt, return_full_text=False, **settings)
    return str(answer["generated_text"])


def threads() -> int:
    return sum(thread.name == "pipeline" for thread in threading.enumerate())


# -- without stream


@pytest.mark.parametrize(
    ("prompt", "settings"),
    [
        (PROMPT, {}),
        (CHAT, {}),
        ([PROMPT, "Once"], {"batch_size": 2}),
        ([CHAT, BEGUN], {}),
        (PROMPT, {"return_tensors": True}),
        (PROMPT, {"num_beams": 2, "num_return_sequences": 2}),
    ],
)
def test_without_stream_a_call_is_transformers_own(
    pipe: StreamingPipeline, folder: Path, prompt: Any, settings: dict[str, Any]
) -> None:
    own = transformers.pipeline("text-generation", model=str(folder))
    assert type(own) is TextGenerationPipeline
    assert pipe(prompt, **GREEDY, **settings) == own(prompt, **GREEDY, **settings)
    assert isinstance(pipe, TextGenerationPipeline)


def test_a_generator_of_prompts_stays_lazy_without_stream(pipe: StreamingPipeline) -> None:
    answers = pipe((prompt for prompt in [PROMPT, "Once"]), **GREEDY)
    assert not isinstance(answers, list)
    assert list(answers) == pipe([PROMPT, "Once"], **GREEDY)


# -- the text


@st.composite
def settings_of_a_call(draw: st.DrawFn) -> dict[str, Any]:
    speculation = draw(
        st.sampled_from(
            [
                {},
                {},
                {"prompt_lookup_num_tokens": 3},
                {"draft": "same"},
                {"draft": "other"},
                {"num_beams": 2},
                {"num_beams": 3},
            ]
        )
    )
    sampling = draw(
        st.sampled_from(
            [{"do_sample": False}, {"do_sample": True, "temperature": 0.8}, {"do_sample": True, "top_k": 3}]
        )
    )
    new_tokens = draw(st.integers(1, 30))
    return {
        **speculation,
        **sampling,
        "max_new_tokens": new_tokens,
        "skip_special_tokens": draw(st.booleans()),
        **draw(st.sampled_from([{}, {"min_new_tokens": new_tokens}, {"add_special_tokens": False}])),
    }


few = hypothesis.settings(max_examples=50)
PROMPTS = st.sampled_from([*tokenizers.TEXTS, CHAT, BEGUN])


@few
@given(prompt=PROMPTS, settings=settings_of_a_call(), seed=st.integers(0, 99))
def test_the_pieces_joined_are_the_generated_text(
    pipe: StreamingPipeline, drafts: dict[str, LlamaForCausalLM], prompt: Any, settings: dict[str, Any], seed: int
) -> None:
    """For any prompt and any settings; a seed set before the call holds for it, streamed or not."""
    if draft := settings.pop("draft", None):
        settings["assistant_model"] = drafts[draft]
    torch.manual_seed(seed)
    expected = own_text(pipe, prompt, **settings)
    torch.manual_seed(seed)
    assert "".join(pipe(prompt, stream=True, **settings)) == expected


@few
@given(prompt=PROMPTS, settings=settings_of_a_call(), stops=st.lists(st.text("e tha.", min_size=1, max_size=2)))
def test_a_stop_string_ends_the_text_before_it(
    pipe: StreamingPipeline,
    drafts: dict[str, LlamaForCausalLM],
    prompt: Any,
    settings: dict[str, Any],
    stops: list[str],
) -> None:
    """Whatever the strategy: transformers' own looks at the last token, misses stops under prompt lookup, raises with
    an assistant, and shows the stop with what its last token brings along."""
    if draft := settings.pop("draft", None):
        settings["assistant_model"] = drafts[draft]
    settings["do_sample"] = False
    settings.pop("temperature", None), settings.pop("top_k", None)
    expected, _ = cut(own_text(pipe, prompt, **settings), stops)
    assert "".join(pipe(prompt, stream=True, stop_strings=stops, **settings)) == expected


def stop_in(text: str) -> str:
    """Three characters from the middle of a text, which stand there for the first time."""
    place = next(place for place in range(len(text) // 2, len(text)) if text.index(text[place : place + 3]) == place)
    return text[place : place + 3]


@pytest.mark.parametrize(
    "where", ["stop_sequence", "generation_config", "pipeline", "pipeline's stop_sequence", "model"]
)
def test_wherever_the_stop_strings_are_given(folder: Path, where: str) -> None:
    whole = own_text(streaming.pipeline(model=str(folder)), PROMPT, **GREEDY)
    stop = stop_in(whole)
    call: dict[str, Any] = {
        "stop_sequence": {"stop_sequence": stop},
        "generation_config": {"generation_config": GenerationConfig(stop_strings=[stop], **GREEDY)},
    }.get(where, {})
    made_with: dict[str, Any] = {
        "pipeline": {"stop_strings": stop},
        "pipeline's stop_sequence": {"stop_sequence": [stop]},
    }.get(where, {})
    pipe = streaming.pipeline(model=str(folder), **made_with)
    if where == "model":
        pipe.model.generation_config.stop_strings = [stop]
    settings = call if where == "generation_config" else {**call, **GREEDY}
    assert "".join(pipe(PROMPT, stream=True, **settings)) == whole[: whole.index(stop)]


def test_an_empty_stop_string_is_refused_to_the_reader(pipe: StreamingPipeline) -> None:
    with pytest.raises(InvalidRequest, match="stop string"):
        list(pipe(PROMPT, stream=True, stop_strings=[""]))


def test_beams_stream_what_they_agree_on_and_are_stopped_too(pipe: StreamingPipeline) -> None:
    settings = {**GREEDY, "num_beams": 3}
    expected = own_text(pipe, PROMPT, **settings)
    assert expected != own_text(pipe, PROMPT, **GREEDY)
    pieces = list(pipe(PROMPT, stream=True, **settings))
    assert "".join(pieces) == expected
    assert len(pieces) > 1
    left = pipe(PROMPT, stream=True, **{**settings, "min_new_tokens": 400, "max_new_tokens": 400})
    next(left)
    left.close()
    assert "".join(pipe(PROMPT, stream=True, **settings)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer(kind: str) -> None:
    tokenizer = made(kind)
    pipe = StreamingPipeline(model=tiny_model(tokenizer), tokenizer=tokenizer)
    expected = own_text(pipe, "a", min_new_tokens=40, **{**GREEDY, "max_new_tokens": 40})
    pieces = list(pipe("a", stream=True, min_new_tokens=40, **{**GREEDY, "max_new_tokens": 40}))
    assert "".join(pieces) == expected
    assert all(pieces)


def test_a_text_from_nothing_shows_what_begins_it_when_asked(fresh: StreamingPipeline) -> None:
    """An empty prompt: transformers puts the first token there, and counts it as generated."""
    assert fresh.tokenizer is not None
    fresh.model.generation_config.bos_token_id = fresh.tokenizer.convert_tokens_to_ids("<|im_start|>")
    expected = own_text(fresh, "", skip_special_tokens=False, **GREEDY)
    assert expected.startswith("<|im_start|>")
    assert "".join(fresh("", stream=True, skip_special_tokens=False, **GREEDY)) == expected
    assert "".join(fresh("", stream=True, **GREEDY)) == own_text(fresh, "", **GREEDY)


def test_spaces_are_tidied_only_where_that_is_a_whole_text_s_matter(fresh: StreamingPipeline) -> None:
    """Llama 3's tokenizer asks for it, and transformers knows better; a word-piece tokenizer gets what it asks for."""
    assert fresh.tokenizer is not None
    fresh.tokenizer.clean_up_tokenization_spaces = True
    assert "".join(fresh(PROMPT, stream=True, **GREEDY)) == own_text(fresh, PROMPT, **GREEDY)
    tokenizer = tokenizers.word_piece()
    pipe = StreamingPipeline(model=tiny_model(tokenizer), tokenizer=tokenizer)
    with pytest.raises(ValueError, match="clean_up_tokenization_spaces=False"):
        pipe("a", stream=True, clean_up_tokenization_spaces=True)


def test_the_text_comes_while_the_model_writes(pipe: StreamingPipeline) -> None:
    """The model is held at its fifth token until the reader has the text of the first."""
    first_read, steps = threading.Event(), []

    def step(ids: list[int]) -> None:
        steps.append(ids)
        if len(steps) == 5:
            assert first_read.wait(60)

    pieces = pipe(PROMPT, stream=True, stopping_criteria=[StreamCallback(step)], **GREEDY)
    text = next(pieces)
    first_read.set()
    assert text + "".join(pieces) == own_text(pipe, PROMPT, **GREEDY)
    assert len(steps) == 24


@pytest.mark.usefixtures("starter_folder")
def test_the_starter_model() -> None:
    """By the name that it has here, a chat, with and without prompt lookup, and up to a stop string."""
    pipe = streaming.pipeline("text-generation", model="starter")
    chat = [{"role": "user", "content": "Count: one, two, three, four, five, six."}]
    settings = {"do_sample": False, "max_new_tokens": 16}
    expected = own_text(pipe, chat, **settings)
    assert "four" in expected
    pieces = list(pipe(chat, stream=True, **settings))
    assert "".join(pieces) == expected
    assert len(pieces) > 10
    assert "".join(pipe(chat, stream=True, prompt_lookup_num_tokens=5, **settings)) == expected
    stopped = pipe(chat, stream=True, prompt_lookup_num_tokens=5, stop_strings=["four"], **settings)
    assert "".join(stopped) == expected[: expected.index("four")]


# -- several prompts


@pytest.mark.parametrize("prompts", [[PROMPT, "Once", "Why"], (CHAT, BEGUN)])
def test_several_prompts_are_answered_one_after_the_other_each_piece_with_its_prompt(
    pipe: StreamingPipeline, prompts: Any
) -> None:
    pieces = list(pipe(prompts, stream=True, **GREEDY))
    assert all(isinstance(piece, Piece) for piece in pieces)
    answers = [
        (index, "".join(text for _, text in group)) for index, group in groupby(pieces, lambda piece: piece.prompt)
    ]
    assert answers == [(index, own_text(pipe, prompt, **GREEDY)) for index, prompt in enumerate(prompts)]


def test_no_prompts_give_no_pieces(pipe: StreamingPipeline) -> None:
    assert list(pipe([], stream=True)) == []


def test_a_prompt_that_fails_ends_the_stream_after_the_answers_before_it(pipe: StreamingPipeline) -> None:
    pieces = pipe([PROMPT, 3, "Once"], stream=True, **GREEDY)
    seen: list[Piece] = []
    with pytest.raises(TypeError):
        seen.extend(iter(pieces.__next__, None))
    assert list(pieces) == []


# -- errors


class Failing(StoppingCriteria):
    def __init__(self) -> None:
        self.error = RuntimeError("out of memory at the fourth token")
        self.steps = 0

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        self.steps += 1
        if self.steps == 4:
            raise self.error
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def test_what_the_model_raises_reaches_the_reader_after_the_text_before_it(pipe: StreamingPipeline) -> None:
    failing = Failing()
    seen: list[str] = []
    pieces = pipe(PROMPT, stream=True, stopping_criteria=[failing], **GREEDY)
    with pytest.raises(RuntimeError, match="fourth token") as caught:
        seen.extend(iter(pieces.__next__, None))
    assert caught.value is failing.error
    assert "".join(seen) == own_text(pipe, PROMPT, **{**GREEDY, "max_new_tokens": 3})
    assert "".join(pipe(PROMPT, stream=True, **GREEDY)) == own_text(pipe, PROMPT, **GREEDY), "and the next one works"


@pytest.mark.parametrize("settings", [{"nonsense": True}, {"do_sample": True, "num_return_sequences": 2}])
def test_what_generate_refuses_is_refused_to_the_reader(pipe: StreamingPipeline, settings: dict[str, Any]) -> None:
    pieces = pipe(PROMPT, stream=True, **settings)
    with pytest.raises(ValueError, match=r"nonsense|Only one sequence"):
        next(pieces)


@pytest.mark.parametrize("settings", [{"return_tensors": True}, {"return_full_text": True}, {"return_text": True}])
def test_a_stream_is_text_alone(pipe: StreamingPipeline, settings: dict[str, Any]) -> None:
    if "return_text" in settings:  # transformers takes it and does nothing with it
        assert "".join(pipe(PROMPT, stream=True, **GREEDY, **settings)) == own_text(pipe, PROMPT, **GREEDY)
        return
    with pytest.raises(ValueError, match="new text only"):
        pipe(PROMPT, stream=True, **settings)


def test_what_is_no_prompt_is_refused_at_the_call(pipe: StreamingPipeline) -> None:
    with pytest.raises(TypeError, match="not a generator"):
        pipe((text for text in [PROMPT]), stream=True)
    with pytest.raises(ValueError, match="this is fill-mask"):
        streaming.pipeline("fill-mask", model="anything")


# -- stopping


class Steps:
    """Counts the steps of a model, and holds it in the fifth until it is let go."""

    def __init__(self) -> None:
        self.count = 0
        self.in_fifth, self.go_on = threading.Event(), threading.Event()

    def settings(self) -> dict[str, Any]:
        return {"stopping_criteria": [StreamCallback(self._step)], "min_new_tokens": 200, "max_new_tokens": 200}

    def _step(self, _: list[int]) -> None:
        self.count += 1
        if self.count == 5:
            self.in_fifth.set()
            assert self.go_on.wait(60)


@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_closing_the_iterator_stops_the_model_within_a_step(pipe: StreamingPipeline, way: str) -> None:
    steps = Steps()
    pieces: Iterator[str] | None = pipe(PROMPT, stream=True, **steps.settings())
    assert pieces is not None
    next(pieces)
    assert steps.in_fifth.wait(60)
    timer = threading.Timer(0.2, steps.go_on.set)  # the reader is in close() by then, which waits for the model
    timer.start()
    if way == "closed":
        pieces.close()  # type: ignore[attr-defined]
    else:
        pieces = None
        gc.collect()
    assert steps.go_on.is_set(), "close() came back while the model was still at work"
    timer.join()
    assert own_text(pipe, PROMPT, **GREEDY) == "".join(pipe(PROMPT, stream=True, **GREEDY))
    assert steps.count == 5


def test_closing_stops_all_prompts(pipe: StreamingPipeline) -> None:
    steps = Steps()
    steps.go_on.set()
    pieces = pipe(["Once", "Twice", PROMPT], stream=True, **{**steps.settings(), "max_new_tokens": 200})
    next(pieces)
    pieces.close()
    after = steps.count
    assert "".join(pipe(PROMPT, stream=True, **GREEDY))
    assert steps.count == after < 200


def test_a_stream_that_nobody_reads_does_nothing(fresh: StreamingPipeline) -> None:
    before = threads()
    pieces = fresh(PROMPT, stream=True, **GREEDY)
    assert threads() == before
    pieces.close()
    assert list(pieces) == []


def test_streams_of_one_pipeline_wait_for_each_other(pipe: StreamingPipeline) -> None:
    """One inside the other, and one that is given up while it waits."""
    outer = pipe(PROMPT, stream=True, **GREEDY)
    texts = [next(outer)]
    inner = "".join(pipe("Once", stream=True, **GREEDY))
    texts.extend(outer)
    assert "".join(texts) == own_text(pipe, PROMPT, **GREEDY)
    assert inner == own_text(pipe, "Once", **GREEDY)


def test_many_readers_at_once_get_each_their_own_text(pipe: StreamingPipeline) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(6)]
    texts: dict[str, str] = {}

    def read(prompt: str) -> None:
        texts[prompt] = "".join(pipe(prompt, stream=True, **GREEDY))

    readers = [threading.Thread(target=read, args=(prompt,)) for prompt in prompts]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert texts == {prompt: own_text(pipe, prompt, **GREEDY) for prompt in prompts}
    assert len(set(texts.values())) > 1


# -- the thread


def test_a_pipeline_has_one_thread_which_ends_with_it(folder: Path) -> None:
    before = set(threading.enumerate())
    pipe = streaming.pipeline(model=str(folder))
    for _ in range(3):
        list(pipe(PROMPT, stream=True, **GREEDY))
    [thread] = set(threading.enumerate()) - before
    model = weakref.ref(pipe.model)
    del pipe
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert model() is None


def test_a_copy_works_by_itself(fresh: StreamingPipeline) -> None:
    expected = "".join(fresh(PROMPT, stream=True, **GREEDY))
    for other in (copy.deepcopy(fresh), pickle.loads(pickle.dumps(fresh))):
        assert "".join(other(PROMPT, stream=True, **GREEDY)) == expected


def test_a_script_may_end_in_the_middle_of_a_stream(folder: Path) -> None:
    """While torch computes in another thread, the interpreter would abort."""
    script = (
        "import sys, streaming\n"
        "pipe = streaming.pipeline(model=sys.argv[1])\n"
        "pieces = pipe('The', stream=True, min_new_tokens=400, max_new_tokens=400)\n"
        "print(len(next(pieces)) > 0)\n"
    )
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# -- what we rely on


def test_a_streamer_of_one_s_own_gets_the_same_ids(pipe: StreamingPipeline) -> None:
    class Counting:
        def __init__(self) -> None:
            self.ids: list[int] = []
            self.ended = 0

        def put(self, value: torch.Tensor) -> None:
            self.ids += value.flatten().tolist()

        def end(self) -> None:
            self.ended += 1

    own = Counting()
    list(pipe(PROMPT, stream=True, streamer=own, **GREEDY))
    assert own.ids == pipe(PROMPT, return_tensors=True, **GREEDY)[0]["generated_token_ids"]
    assert own.ended == 1


def test_the_private_names_of_transformers_that_are_used_are_there() -> None:
    """If an upgrade renames one, this says which, before a stop string is missed."""
    for name in ("_forward", "_sanitize_parameters", "_prepare_generate_kwargs", "_get_set_generation_params"):
        assert callable(getattr(TextGenerationPipeline, name)), name
    tokenizer = tokenizers.byte_level_bpe()
    pipe = TextGenerationPipeline(model=tiny_model(tokenizer), tokenizer=tokenizer, stop_strings=["a"])
    assert isinstance(pipe._postprocess_params, dict)
    assert pipe._get_set_generation_params(pipe._prepare_generate_kwargs({}))["stop_strings"] == ["a"]
    assert not pipe._get_set_generation_params(pipe._prepare_generate_kwargs({"stop_strings": None}))["stop_strings"]
