"""From a name to a loaded model: what is found, what is refused, and in which words."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

from streaming import hub, memory, models
from streaming.errors import ModelError, ModelNotFound, ModelTooLarge
from streaming.models import GGUF_NOTICE, UNKNOWN_CONTEXT_TOKENS, ModelSource
from tests.tiny import CONTEXT_TOKENS, tiny_folder


def prepare(name: object) -> ModelSource:
    return models.prepare(str(name), cache_dir=None, progress=lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole model of a few thousand parameters."""
    return tiny_folder(tmp_path / "tiny")


def describe(path: Path, **config: Any) -> Path:
    """A folder that claims to hold this kind of model."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").touch()
    return path


# -- finding


def test_the_starter_model_says_what_it_is_and_is_listed(starter_folder: Path) -> None:
    source = prepare("starter")
    assert source.path == starter_folder
    assert "small demonstration model" in source.notices[0]
    assert "--model" in source.notices[0]
    listed = models.cached_models(None)[0]
    assert (listed.name, listed.path) == ("starter", starter_folder)
    assert 500e6 < listed.size_bytes < 600e6


def test_a_folder(folder: Path) -> None:
    assert prepare(folder) == ModelSource(str(folder), folder)


def test_a_gguf_file_and_a_folder_with_one(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert prepare(file) == ModelSource(str(file), tmp_path, "model.gguf", (GGUF_NOTICE,))
    assert prepare(tmp_path).gguf_file == "model.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"several GGUF files.*model\.gguf, other\.gguf"):
        prepare(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("./nothing", "/nothing/here", "~/nothing/here", "model.gguf", "a b", "", "a/b/c", ".."),
        *("~nobody-of-this-name/x", "a\0b", "\ud800", "$(touch x)", "one\ntwo", "/" + "long" * 5_000, "long/" * 5_000),
    ],
)
def test_a_name_that_can_only_be_a_path_is_not_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(hub, "fetch", lambda *_: pytest.fail("asked the Hub"))
    with pytest.raises(ModelNotFound):
        prepare(name)


def test_files_and_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"neither a config\.json nor a \.gguf file"):
        prepare(tmp_path)
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ModelNotFound, match=r"not a \.gguf file"):
        prepare(tmp_path / "weights.bin")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="no weights"):
        prepare(tmp_path)


def test_a_folder_that_lacks_a_part_of_the_weights_names_it(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"not complete.*lacks model-00002-of-00002\.safetensors"):
        prepare(folder)
    (folder / "model-00002-of-00002.safetensors").touch()
    assert prepare(folder).path == folder


@pytest.mark.parametrize("content", ["{", "[]", '"text"'])
def test_a_damaged_description(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"damaged: .*config\.json"):
        prepare(folder)


def test_preparing_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from streaming import models\n"
        f"models.prepare({str(folder)!r}, cache_dir=None, progress=print)\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


# -- loading


@pytest.mark.usefixtures("starter_folder")
def test_loads_the_starter_model() -> None:
    loaded = models.load(prepare("starter"))
    assert loaded.context_tokens == 8192
    assert not loaded.model.training
    assert loaded.tokenizer.chat_template is not None
    if not torch.accelerator.is_available():
        assert loaded.model.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_precision_can_be_chosen(folder: Path, dtype: str) -> None:
    loaded = models.load(prepare(folder), dtype=dtype)
    assert loaded.model.dtype == getattr(torch, dtype)
    assert (loaded.context_tokens, loaded.notices) == (CONTEXT_TOKENS, ())
    assert loaded.tokenizer.decode(loaded.tokenizer("one two")["input_ids"]) == "one two"


def test_loads_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    loaded = models.load(prepare(file))
    assert (loaded.context_tokens, loaded.notices) == (64, (GGUF_NOTICE,))
    assert loaded.model.generate(torch.tensor([[3]]), max_new_tokens=2, do_sample=False).shape[1] > 1


def write_gguf(file: Path) -> None:
    width, inner, words = 32, 64, ["<unk>", "<s>", "</s>", "a", "b", "ab"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 2)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(words) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(words), width), "output_norm": (width,), "output": (len(words), width)}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (inner, width) for name in ("ffn_gate", "ffn_up")}
    shapes |= {"blk.0.ffn_down": (width, inner), "blk.0.attn_norm": (width,), "blk.0.ffn_norm": (width,)}
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# -- refusing


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        {"model_type": "clip", "architectures": ["CLIPModel"]},
    ],
)
def test_what_does_not_write_text_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    """Loaded as a language model, an encoder gets a head of random numbers, and answers with noise."""
    with pytest.raises(ModelError, match=f"does not write text .*{config['architectures'][0]}"):
        models.load(prepare(describe(tmp_path, **config)))


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    describe(tmp_path, model_type="own", auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ModelError, match="would have to be executed here, and that is never done"):
        models.load(prepare(tmp_path))


def test_a_kind_of_model_that_is_too_new_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"kind 'from_next_year'.*does not know"):
        models.load(prepare(describe(tmp_path, model_type="from_next_year")))


def test_a_damaged_file_is_named_with_the_librarys_own_error(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=f"{folder}.*delete it") as raised:
        models.load(prepare(folder))
    assert raised.value.__cause__ is not None


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    """transformers fills them with random numbers and logs a warning: the model then talks nonsense."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 weights, model\.layers\.0\.mlp\.up_proj\.weight"):
        models.load(prepare(folder))


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = LlamaForCausalLM.from_pretrained(folder).num_parameters()
    monkeypatch.setattr(memory, "free_memory", lambda: parameters * 3)
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(
        ModelTooLarge, match=r"parameters of 4 bytes .* are free. --weights int8 or --dtype bfloat16 halves that"
    ):
        models.load(prepare(folder), dtype="float32")
    with pytest.raises(ModelError, match="could not be loaded"):
        models.load(prepare(folder), dtype="bfloat16")


@pytest.mark.parametrize(
    ("config", "tokenizer_limit", "expected"),
    [
        (LlamaConfig(max_position_embeddings=2048), 10**30, 2048),
        (LlamaConfig(max_position_embeddings=2048), 77, 2048),
        (GPT2Config(n_positions=1024), 10**30, 1024),
        (PreTrainedConfig(), 512, 512),
        (PreTrainedConfig(), 10**30, UNKNOWN_CONTEXT_TOKENS),
    ],
)
def test_the_context_is_the_models_and_else_the_tokenizers(config: Any, tokenizer_limit: int, expected: int) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), model_max_length=tokenizer_limit
    )
    assert models._context_tokens(config, tokenizer) == expected


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("starter", "SmolLM2-135M"),
        ("HuggingFaceTB/SmolLM3-3B", "SmolLM3-3B"),
        ("owner/name:FILE.gguf", "name"),
        ("/models/mine/", "mine"),
        ("scripted", "scripted"),
        ("/", "/"),
    ],
)
def test_people_are_shown_the_last_part_of_a_name(name: str, shown: str) -> None:
    assert models.title(name) == shown
