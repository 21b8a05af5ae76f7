"""From a name to a loaded model: the starter model, a folder, a GGUF file, or a repository of the Hub.

`prepare` finds, fetches and converts without torch, from any thread. `load` imports torch and computes: it belongs on
the one thread that will generate. Code that comes with a model is never run.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming import hub, memory, starter
from streaming.config import on_zero_gpu
from streaming.errors import ModelError, ModelNotFound, ModelTooLarge

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

STARTER = "starter"
STARTER_NOTICE = (
    "This is a small demonstration model: it is quick, and often wrong. For a better one start with "
    "`python app.py --model HuggingFaceTB/SmolLM3-3B`, or with a folder on this machine."
)
GGUF_NOTICE = "The GGUF file was unpacked to full precision: it saves download, but neither memory nor time here."
UNKNOWN_CONTEXT_TOKENS = 4096
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length")
_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:[:/](?P<gguf>[\w./-]+\.gguf))?")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that lies on this machine: its folder, and the GGUF file in it if that is what to read."""

    name: str
    path: Path
    gguf_file: str | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model with its tokenizer. `notices` are lasting remarks for the user."""

    name: str
    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    context_tokens: int
    notices: tuple[str, ...] = ()
    int8: bool = False  # its large layers are kept in 8 bits


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that needs no network, and what it takes of the disk."""

    name: str
    path: Path
    size_bytes: int


def title(name: str) -> str:
    """What to call a model in front of people: the last part of its name."""
    return "SmolLM2-135M" if name == STARTER else Path(name.partition(":")[0]).name or name


def prepare(
    name: str,
    *,
    cache_dir: Path | None,
    progress: Callable[[str], None],
    measure: Callable[[int, int], None] = lambda *_: None,
) -> ModelSource:
    """Find the model `name`, fetching it where it is not here.

    `name` is "starter", a folder, a .gguf file, "owner/name" on the Hub, or "owner/name:FILE.gguf". `progress` gets
    lines for a person, from any thread, and `measure` just before how many bytes have come, and of how many (0: not
    known); what they raise ends the work. Raises a ModelError that says what to do.
    """
    if name == STARTER:
        return ModelSource(name, starter.prepare(cache_dir, progress, measure), notices=(STARTER_NOTICE,))
    if path := local_path(name):
        return _local(name, path)
    repo, gguf_file = on_hub(name)
    folder = hub.fetch(repo, gguf_file, progress, measure)
    return ModelSource(name, folder, gguf_file, (GGUF_NOTICE,)) if gguf_file else _transformers_folder(name, folder)


def find(name: str, *, cache_dir: Path | None) -> ModelSource | None:
    """The model `name`, if it needs no network. Raises a ModelError about a folder or a file that holds none."""
    if name == STARTER:
        folder = starter.find(cache_dir)
        return ModelSource(name, folder, notices=(STARTER_NOTICE,)) if folder else None
    if path := local_path(name):
        return _local(name, path)
    repo, gguf_file = on_hub(name)
    folder = hub.find(repo, gguf_file)
    if folder is None or gguf_file:
        return ModelSource(name, folder, gguf_file, (GGUF_NOTICE,)) if folder else None
    try:
        return _transformers_folder(name, folder)
    except ModelError:  # some other program has looked at a part of it
        return None


def only_on_hub(name: str) -> bool:
    """Whether a name can mean nothing on this machine: a repository, or a GGUF file in one."""
    try:
        return local_path(name) is None and bool(on_hub(name))
    except ModelNotFound:
        return False


def architectures(source: ModelSource) -> tuple[str, ...]:
    """What a model's makers call it; nothing, where the file does not say."""
    if source.gguf_file:
        return ()
    return tuple(_read_json(source.name, source.path / "config.json").get("architectures") or ())


def loaded_bytes(parameters: int, shared: int, *, dtype: str, weights: str, accelerated: bool) -> int:
    """What so many parameters will take, by rule of thumb; `load` counts. `shared` are the embedding's and the head's,
    which are laid out for a processor beside each other, or left as they are where a GPU keeps the rest in fewer bits.
    In 8 bits on a processor a model takes the most while it is read."""
    if weights != "full" and not accelerated:
        return 2 * parameters
    if weights != "full":
        return 2 * shared + (parameters - shared) // (1 if weights == "int8" else 2)
    each = {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 2 if accelerated else 4)
    return each * (parameters + (0 if accelerated else shared))


def clear_away(name: str, cache_dir: Path | None) -> None:
    """Delete what a killed `prepare` has left that no other one could go on with."""
    if name == STARTER:
        starter.clear_away(cache_dir)
    elif hub_name := _HUB_NAME.fullmatch(name):
        hub.clear_away(hub_name["repo"])


def local_path(name: str) -> Path | None:
    """The folder or file that a name means, if there is one."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, not ours to look at; a user's home who is not; no path
        return None


def on_hub(name: str) -> tuple[str, str | None]:
    """Repository and GGUF file of a name of the Hub. Raises ModelNotFound if it cannot be one."""
    hub_name = _HUB_NAME.fullmatch(name)
    if hub_name is None or name.startswith(".") or (hub_name["gguf"] is None and name.endswith(".gguf")):
        raise ModelNotFound(
            f"There is no folder or file {name!r}. A model is '{STARTER}', a folder, a .gguf file, or a name "
            "of the Hub such as HuggingFaceTB/SmolLM3-3B."
        )
    return hub_name["repo"], hub_name["gguf"]


def cached_models(cache_dir: Path | None) -> list[CachedModel]:
    """What can be used without network: the starter model and the Hub's cache."""
    found = [CachedModel(*entry) for entry in hub.cached()]
    if folder := starter.find(cache_dir):
        size = sum(file.stat().st_size for file in folder.iterdir())
        found.insert(0, CachedModel(STARTER, folder, size))
    return found


def _local(name: str, path: Path) -> ModelSource:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFound(f"{path} is not a .gguf file: give the folder that the model is in, or a .gguf file.")
        return ModelSource(name, path.parent, path.name, (GGUF_NOTICE,))
    if (path / "config.json").exists():
        return _transformers_folder(name, path)
    gguf_files = sorted(file.name for file in path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return ModelSource(name, path, gguf_files[0], (GGUF_NOTICE,))
    if gguf_files:
        raise ModelNotFound(f"{path} holds several GGUF files: name the one to use ({', '.join(gguf_files)}).")
    raise ModelNotFound(f"{path} holds no model: there is neither a config.json nor a .gguf file in it.")


def _transformers_folder(name: str, path: Path) -> ModelSource:
    """Check, before torch is needed, that a folder is whole and that nothing in it has to be executed."""
    if not (path / "config.json").exists():
        raise ModelNotFound(f"{name} has no config.json: it is not a model that transformers can load by itself.")
    _read_json(name, path / "config.json")
    for weights in _WEIGHTS:
        index = path / f"{weights}.index.json"
        if index.exists():
            shards = set(_read_json(name, index).get("weight_map", {}).values())
            if lost := sorted(shard for shard in shards if not (path / shard).exists()):
                raise ModelError(f"{name} is not complete: {path} lacks {', '.join(lost)}. Fetch it again.")
            return ModelSource(name, path)
        if (path / weights).exists():
            return ModelSource(name, path)
    raise ModelNotFound(f"{name} has a config.json but no weights: {path} lacks {_WEIGHTS[0]}.")


def _read_json(name: str, file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{name} is damaged: {file} is not valid JSON. Fetch it again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{name} is damaged: {file} does not hold what it should. Fetch it again.")
    return content


def load(source: ModelSource, *, dtype: str = "auto", weights: str = "full") -> Model:
    """Load model and tokenizer, ready to generate (about 1 s for the starter model). Computes in the calling thread.

    `dtype` is float32, bfloat16, float16 or auto: on a CPU that is float32, which every CPU computes at full speed
    while most only emulate the half precisions; on an accelerator it is what the weights are stored in. `weights` is
    full, int8 or 4bit: see precision.py.
    Raises ModelTooLarge or ModelError, with the library's own error as `__cause__`.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # weights in large pages, if torch was not in use before this
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from streaming import int8, layers, packing, precision

    borrowed = on_zero_gpu()  # there is a GPU at times, and not now
    accelerated = borrowed or torch.accelerator.is_available()
    where: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    if source.gguf_file:
        where["gguf_file"] = source.gguf_file
    with _explained(source), _no_bars():
        if not source.gguf_file:
            _check_kind(source)
        config = AutoConfig.from_pretrained(source.path, **where)
        chosen = precision.choose(dtype, weights, config, accelerated=accelerated, borrowed=borrowed)
        with torch.device("meta"):  # the shapes alone: no memory, no time
            shell: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        packs = not accelerated and not chosen.int8 and packing.available(chosen.compute)
        parameters, size_bytes = shell.num_parameters() + (packing.copied(shell) if packs else 0), 0
        if chosen.int8:  # all of it is read before the first layer is converted
            size_bytes = max(parameters * chosen.read.itemsize, int8.size_bytes(shell, chosen.compute))
        elif chosen.library is not None:
            size_bytes = layers.size_bytes(shell, chosen.library_bits, chosen.compute)
        memory.require_memory(source.name, parameters, chosen.read, size_bytes=size_bytes)
        tokenizer = AutoTokenizer.from_pretrained(source.path, **where)

        kept = {} if chosen.library is None else {"quantization_config": chosen.library}

        def read_weights() -> Any:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source.path,
                config=config,
                dtype=chosen.read,
                device_map="auto" if accelerated and not borrowed else None,
                output_loading_info=True,
                **kept,
                **where,
            )
            model, report = loaded
            if lost := sorted(report["missing_keys"]):
                raise ModelError(
                    f"{source.name} is not complete: its files lack {len(lost)} weights, {lost[0]} among them. "
                    "Fetch it again."
                )
            return model

        model = read_weights()
        if chosen.int8:
            try:
                int8.quantise(model, chosen.compute)
            except layers.Unfit as error:
                raise ModelError(
                    f"{source.name} cannot be kept in 8 bits, because {error}. Leave --weights out."
                ) from error
        elif packs:
            try:
                packing.pack(model)
            except layers.Unfit as error:
                LOG.warning("%s is not laid out for this processor, because %s.", source.name, error)
                model = read_weights()
    context_tokens = _context_tokens(config, tokenizer)
    return Model(source.name, model, tokenizer, context_tokens, source.notices, chosen.int8)


def _check_kind(source: ModelSource) -> None:
    """Refuse what cannot chat. Loading would not: it gives an encoder a head of random numbers."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = source.name
    config = _read_json(name, source.path / "config.json")
    kind, classes = config.get("model_type"), config.get("architectures") or ()
    if kind not in CONFIG_MAPPING:
        if "auto_map" in config:
            raise ModelError(
                f"{name} comes with Python code of its own that would have to be executed here, and that is never "
                "done. Choose a model that transformers supports itself."
            )
        raise ModelError(f"{name} is of the kind {kind!r}, which this version of transformers does not know.")
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    generates = not classes or any(item in known or item.endswith("ForConditionalGeneration") for item in classes)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or config.get("is_encoder_decoder") or not generates:
        raise ModelError(
            f"{name} does not write text as a chat needs it (it is a {', '.join(classes) or kind}). "
            "Choose a model for text generation, best with Instruct or Chat in its name."
        )


def _context_tokens(config: "PreTrainedConfig", tokenizer: "PreTrainedTokenizerBase") -> int:
    """How many tokens the model was made for. A tokenizer that does not know says a number beyond all sense."""
    text_config = config.get_text_config()
    stated = [getattr(text_config, name, None) for name in _CONTEXT_NAMES] + [tokenizer.model_max_length]
    return next((n for n in stated if isinstance(n, int) and 0 < n < 10**9), UNKNOWN_CONTEXT_TOKENS)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Loading is reported by who asked for it, not by bars in the middle of the log."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _explained(source: ModelSource) -> Iterator[None]:
    """Turn whatever the library raises while it loads into a ModelError that says which model it was."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
            raise ModelTooLarge(
                f"The memory ran out while {source.name} was loaded: choose a smaller model."
            ) from error
        raise ModelError(
            f"{source.name} could not be loaded from {source.path}: {error}. If a file there is damaged, delete it "
            "and start again."
        ) from error
