"""What the figures were measured on, in one line."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def hardware() -> str:
    """Processor, cores that this process may use, Python, and the libraries that decide the figures."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "gradio"))
    return f"{_processor()}, {cores} cores, Python {platform.python_version()}, {libraries}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
