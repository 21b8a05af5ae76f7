"""How much memory a model may take."""

from pathlib import Path

import psutil
import pytest
import torch

from streaming import memory
from streaming.errors import ModelTooLarge


def test_the_error_names_what_is_needed_and_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * 10**9)
    memory.require_memory("small", 10**9, torch.float32)
    with pytest.raises(ModelTooLarge, match=r"3,000 million parameters of 4 bytes need about 13\.2 GB, and 8\.0 GB"):
        memory.require_memory("large", 3 * 10**9, torch.float32)
    memory.require_memory("large", 3 * 10**9, torch.bfloat16)
    with pytest.raises(ModelTooLarge, match=r"free. Choose a smaller model") as raised:
        memory.require_memory("huge", 30 * 10**9, torch.bfloat16)
    assert "bfloat16" not in str(raised.value)


def test_a_container_has_less_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for free memory, psutil names the machine's: a model loaded by that figure is killed by the container."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CONTAINER_LIMIT", limit)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    used = psutil.Process().memory_info().rss
    limit.write_text(f"{used + 50_000_000}\n")
    assert 0 < memory.free_memory() < 60_000_000
    limit.write_text("max\n")
    assert memory.free_memory() > 60_000_000
