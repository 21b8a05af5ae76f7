"""Whether a model fits into memory, asked before it is loaded, and what of the rest its caches may take: what runs out
later takes the whole program with it.

Knows parameter counts and sizes in bytes, and nothing of files.
"""

import ctypes
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from streaming.disk import size_text
from streaming.errors import ModelTooLarge

if TYPE_CHECKING:
    import torch

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_BESIDE_WEIGHTS = 1.1  # the weights, and what a short conversation needs beside them


def require_memory(name: str, parameters: int, dtype: "torch.dtype", *, size_bytes: int = 0) -> None:
    """Raise ModelTooLarge unless `parameters` of this precision fit into what is free here, accelerators included.

    `size_bytes` is what they take where they are kept in fewer bits, or only in part, and that is more or less.
    """
    needed = needed_bytes(size_bytes or parameters * dtype.itemsize)
    free = free_memory()
    if needed > free:
        advice = "Choose a smaller model, or close other programs."
        if not size_bytes and dtype.itemsize > 2:
            advice = f"--weights int8 or --dtype bfloat16 halves that. {advice}"
        each = "" if size_bytes else f" of {dtype.itemsize} bytes"
        raise ModelTooLarge(
            f"{name} does not fit into memory: {parameters / 1e6:,.0f} million parameters{each} "
            f"need about {size_text(needed)}, and {size_text(free)} are free. {advice}"
        )


def needed_bytes(weights: int) -> int:
    """What a model needs to answer whose weights take so many bytes."""
    return int(weights * _BESIDE_WEIGHTS)


def cache_bytes(device: "torch.device") -> int:
    """What the caches of a loaded model may take where it lies: of main memory, which is not ours alone, less."""
    import torch

    if device.type == "cpu":
        return free_main_memory() // 4
    return torch.accelerator.get_memory_info(device)[0] // 2


def free_memory() -> int:
    """Bytes that a model could take: of the accelerators, and of the main memory that this process may use."""
    import torch

    accelerators = range(torch.accelerator.device_count())
    return sum(torch.accelerator.get_memory_info(device)[0] for device in accelerators) + free_main_memory()


def give_back() -> None:
    """Hand back to the system what a model took that nobody holds any more. It lies in cycles, and then in the hands of
    allocators, who would keep it for the next one."""
    import torch

    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):  # glibc alone has it
        trim(0)


def accelerated() -> bool:
    import torch

    return torch.accelerator.is_available()


def free_main_memory() -> int:
    """Bytes of it that this process may take. Needs no torch."""
    free = psutil.virtual_memory().available
    if _CONTAINER_LIMIT.exists():  # inside a container, psutil sees the whole machine
        limit = _CONTAINER_LIMIT.read_text().strip()
        if limit != "max":
            return min(free, int(limit) - psutil.Process().memory_info().rss)
    return free
