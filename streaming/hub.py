"""Fetches model repositories from the Hugging Face Hub, or finds them in its cache when there is no network.

Only what transformers reads is taken: safetensors rather than .bin, nothing of subfolders; or one GGUF file.
Knows nothing of what is inside. Downloads run in threads of the Hub's library; broken ones go on with what is missing.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from filelock import FileLock, Timeout
from huggingface_hub import CacheNotFound, HfApi, scan_cache_dir, snapshot_download, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    SafetensorsParsingError,
)
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils.tqdm import tqdm

from streaming import disk
from streaming.errors import ModelError, ModelNotFound, NoNetwork

Report = Callable[[str], None]
Measure = Callable[[int, int], None]  # bytes that have come, and all that are to come

_DESCRIPTION = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")
_SINGLE = "model.safetensors"
_NOT_WANTED = ("*/*", "consolidated*")  # other formats of the same weights live there


@dataclass(frozen=True, slots=True)
class Description:
    """What the Hub tells of a model: the bytes that `fetch` would bring; its parameters (0: not known), and how many
    each tensor has, if all are in one file; and what its architectures are called."""

    size_bytes: int
    parameters: int
    tensors: Mapping[str, int]
    architectures: tuple[str, ...]


def describe(repo: str, gguf_file: str | None) -> Description:
    """Ask for what there is to know before anything is fetched. Raises ModelNotFound, NoNetwork or ModelError."""
    with _explained(repo):
        info = HfApi().model_info(repo, files_metadata=True)
        _, size_bytes = _wanted(repo, gguf_file, info)
        tensors = {}
        if gguf_file is None and _SINGLE in {file.rfilename for file in info.siblings or ()}:
            with suppress(SafetensorsParsingError):  # a file of that name with something else in it
                header = HfApi().parse_safetensors_file_metadata(repo, _SINGLE)
                tensors = {name: tensor.parameter_count for name, tensor in header.tensors.items()}
    parameters = info.safetensors.total if info.safetensors and gguf_file is None else 0
    return Description(size_bytes, parameters, tensors, tuple((info.config or {}).get("architectures") or ()))


def find(repo: str, gguf_file: str | None) -> Path | None:
    """The folder in the Hub's cache that the model lies in, if all of it does. Asks nobody."""
    try:
        folder = Path(snapshot_download(repo, local_files_only=True, cache_dir=HF_HUB_CACHE, **_offline(gguf_file)))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if gguf_file is None or (folder / gguf_file).exists() else None


def fetch(repo: str, gguf_file: str | None, report: Report, measure: Measure = lambda *_: None) -> Path:
    """Bring the repository `owner/name`, or one GGUF file of it, into the Hub's cache; returns the folder.

    `report` gets lines about the progress, from any thread, and `measure` its figures just before; what they raise ends
    the download.
    Raises ModelNotFound, NoNetwork, NoDiskSpace or ModelError.
    """
    with _explained(repo), disk.explained(Path(HF_HUB_CACHE)):
        try:
            info = HfApi().model_info(repo, files_metadata=True)
        except (httpx2.TransportError, OfflineModeIsEnabled):
            return Path(snapshot_download(repo, local_files_only=True, cache_dir=HF_HUB_CACHE, **_offline(gguf_file)))
        return _download(repo, gguf_file, info, report, measure)


def clear_away(repo: str) -> None:
    """Delete the halves of files that killed downloads have left. The library goes on with none of them: each download
    has names of its own. What another process is fetching right now it holds a lock of."""
    cache, folder = Path(HF_HUB_CACHE), f"models--{repo.replace('/', '--')}"
    for half in (cache / folder / "blobs").glob("*.incomplete"):
        blob = half.name.removesuffix(".incomplete").rpartition(".")[0]
        with suppress(Timeout, OSError), FileLock(cache / ".locks" / folder / f"{blob}.lock", blocking=False):
            half.unlink(missing_ok=True)


def cached() -> list[tuple[str, Path, int]]:
    """The models in the Hub's cache: id, folder and bytes on the disk."""
    try:
        repos = scan_cache_dir(HF_HUB_CACHE).repos
    except (CacheNotFound, ValueError):  # there is none, or something else lies there
        return []
    return sorted((repo.repo_id, repo.repo_path, repo.size_on_disk) for repo in repos if repo.repo_type == "model")


def _download(repo: str, gguf_file: str | None, info: ModelInfo, report: Report, measure: Measure) -> Path:
    clear_away(repo)
    patterns, missing = _wanted(repo, gguf_file, info)
    disk.require_space(Path(HF_HUB_CACHE), missing)
    ignored = [] if gguf_file else [*_NOT_WANTED]

    def tell(done: int) -> None:
        measure(done, missing)
        report(f"Downloading {repo}: {done / 1e6:.0f} of {disk.size_text(missing)}")

    bar = _reporting_bar(tell)
    where: Any = {"cache_dir": HF_HUB_CACHE, "tqdm_class": bar}
    return Path(snapshot_download(repo, allow_patterns=patterns, ignore_patterns=ignored, **where))


def _offline(gguf_file: str | None) -> dict[str, Any]:
    """What to look for where nobody says what there is."""
    patterns = [gguf_file] if gguf_file else [*_DESCRIPTION, "*.safetensors"]
    return {"allow_patterns": patterns, "ignore_patterns": [] if gguf_file else [*_NOT_WANTED]}


def _wanted(repo: str, gguf_file: str | None, info: ModelInfo) -> tuple[list[str], int]:
    """What to take, and how many bytes of that are not here."""
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    patterns = _patterns(repo, gguf_file, sizes)
    missing = sum(
        size
        for name, size in sizes.items()
        if any(Path(name).match(pattern) for pattern in patterns)
        and ("/" not in name or name == gguf_file)
        and not isinstance(try_to_load_from_cache(repo, name, cache_dir=HF_HUB_CACHE, revision=info.sha), str)
    )
    return patterns, missing


def _patterns(repo: str, gguf_file: str | None, names: dict[str, int]) -> list[str]:
    """What to take of a repository with these files."""
    gguf_files = sorted(name for name in names if name.endswith(".gguf"))
    if gguf_file:
        if gguf_file not in names:
            choice = f"It has {', '.join(gguf_files)}." if gguf_files else "It has no GGUF files."
            raise ModelNotFound(f"There is no file {gguf_file} in {repo} on the Hub. {choice}")
        return [gguf_file]
    for weights in ("*.safetensors", "*.bin"):
        if any(Path(name).match(weights) and "/" not in name for name in names):
            return [*_DESCRIPTION, weights]
    if gguf_files:
        raise ModelNotFound(
            f"{repo} holds GGUF files, so one must be chosen: --model {repo}:{gguf_files[0]} "
            f"(it has {', '.join(gguf_files)})."
        )
    raise ModelError(f"{repo} holds no weights that transformers can read: choose another model.")


def _reporting_bar(report_bytes: Callable[[int], None]) -> type[tqdm]:
    """The Hub's own progress bar, which also tells how many bytes have come, over all files and threads."""
    lock = threading.Lock()
    come = 0

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal come
            if self._counts_bytes:
                with lock:
                    come += int(n or 0)
                report_bytes(come)
            shown: bool | None = super().update(n)
            return shown

    return Bar


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """Turn the Hub library's errors into ours."""
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"{repo} is open only to those who accepted its terms. Accept them at https://huggingface.co/{repo}, "
            "log in here with `hf auth login` (or set HF_TOKEN), and start again."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"There is no model {repo} on the Hub, and no such folder here. Check the spelling; "
            "if it is a private model, log in with `hf auth login` (or set HF_TOKEN)."
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise NoNetwork(
            f"{repo} is not on this machine (not completely, at least), and the Hub cannot be reached to fetch it. "
            "Check the network, or choose a model that is here: `python -m streaming models` lists them, "
            "and a folder works too."
        ) from error
    except HfHubHTTPError as error:
        raise NoNetwork(
            f"The Hub refused to send {repo}: it answered {error.response.status_code}. Try again later."
        ) from error
    except httpx2.HTTPError as error:
        raise NoNetwork(
            f"The connection to the Hub broke while {repo} was fetched ({error or type(error).__name__}). "
            "Start again: what has come whole is kept."
        ) from error
