"""How large a model is, before anything of it is fetched or loaded: its bytes, and its parameters by its headers.

Knows nothing of memory. Blocks, on the disk or the network: for worker threads. Imports no torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import get_local_safetensors_metadata
from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

from streaming import hub, models, starter
from streaming.errors import ModelError
from streaming.models import STARTER, ModelSource

STARTER_PARAMETERS, STARTER_SHARED = 134_515_008, 28_311_552
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # how transformers calls what writes text
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class Weight:
    """`size_bytes` is on the disk where the model is `here`, else to be downloaded. `parameters` is 0 where that is not
    known; `shared` of them are the embedding's and the head's too."""

    name: str
    here: bool
    size_bytes: int
    parameters: int = 0
    shared: int = 0


def weigh(name: str, cache_dir: Path | None) -> Weight:
    """Raises a ModelError: there is no such model, it writes no text, or it is not here and the Hub does not answer."""
    if weight := on_disk(name, cache_dir):
        return weight
    if name == STARTER:
        return Weight(name, False, starter.WHEEL_BYTES, STARTER_PARAMETERS, STARTER_SHARED)
    described = hub.describe(*models.on_hub(name))
    if described.architectures and not _writes(described.architectures):
        raise ModelError(
            f"{name} does not write text as a chat needs it (it is a {', '.join(described.architectures)}). "
            "Choose a model for text generation, best with Instruct or Chat in its name."
        )
    tensors = described.tensors
    return Weight(name, False, described.size_bytes, sum(tensors.values()) or described.parameters, _shared(tensors))


def on_disk(name: str, cache_dir: Path | None) -> Weight | None:
    """Of a model that needs no network. Raises a ModelError about a folder or a file that is none."""
    source = models.find(name, cache_dir=cache_dir)
    return _weigh(source) if source else None


def cached(cache_dir: Path | None) -> Iterator[Weight]:
    """What is here, whole, and writes text: the starter model, and models of the Hub's cache."""
    names = [STARTER]
    for repo, folder, _ in hub.cached():
        found = {file.name for file in folder.glob("snapshots/*/*.gguf")}
        names += [repo, *(f"{repo}:{file}" for file in sorted(found))]
    for name in names:
        source = models.find(name, cache_dir=cache_dir)
        if source is not None and _writes(models.architectures(source)):
            yield _weigh(source)


def _weigh(source: ModelSource) -> Weight:
    if source.gguf_file:
        return Weight(source.name, True, (source.path / source.gguf_file).stat().st_size)
    files = [*source.path.glob("*.safetensors")] or [*source.path.glob("*.bin")]
    try:
        headers: Iterable[Any] = get_local_safetensors_metadata(source.path).files_metadata.values()
    except (NotASafetensorsRepoError, SafetensorsParsingError, OSError, ValueError):
        headers = ()  # they are of another kind, or damaged: loading says it better
    tensors = {name: tensor.parameter_count for header in headers for name, tensor in header.tensors.items()}
    size_bytes = sum(file.stat().st_size for file in files)
    return Weight(source.name, True, size_bytes, sum(tensors.values()), _shared(tensors))


def _writes(architectures: Sequence[str]) -> bool:
    return not architectures or any(name.endswith(_WRITERS) for name in architectures)


def _shared(tensors: Mapping[str, int]) -> int:
    """A model without a head of its own has the embedding's weights for one."""
    if any(name.endswith(_HEADS) for name in tensors):
        return 0
    return max((size for name, size in tensors.items() if name.endswith(_EMBEDDINGS)), default=0)
