"""Fetching from the Hub, against a stand-in on this machine.

Each case runs in a child process, as the Hub's library reads its address and its cache folder when it is imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.hub_server import COMMIT, Repos, hub

CHILD = """
import json, sys
from streaming import models
from streaming.errors import StreamingError

lines = []
try:
    source = models.prepare(sys.argv[1], cache_dir=None, progress=lines.append)
    result = {"folder": str(source.path), "gguf_file": source.gguf_file}
    result["cached"] = [[model.name, model.size_bytes] for model in models.cached_models(None)]
except StreamingError as error:
    result = {"error": type(error).__name__, "text": str(error), "cause": type(error.__cause__).__name__}
print(json.dumps(result | {"lines": lines, "torch": "torch" in sys.modules}))
"""
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": b"s" * 3_000_000,
    "pytorch_model.bin": b"the same again",
    "onnx/config.json": b"{}",
    "onnx/model.onnx": b"and again",
    "README.md": b"# a model",
}


@dataclass
class Stand:
    """The stand-in's content, and a way to prepare a model from it in a child process."""

    address: str
    home: Path
    repos: Repos = field(default_factory=Repos)

    def prepare(self, name: str, **environ: str) -> dict[str, object]:
        settings = {"HF_ENDPOINT": self.address, "HF_HOME": str(self.home), "XDG_CACHE_HOME": str(self.home)}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", CHILD, name],
            env=os.environ | settings | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "2"} | environ,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        )
        result: dict[str, object] = json.loads(done.stdout)
        assert result["torch"] is False
        return result


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    repos = Repos({"someone/model": dict(MODEL)})
    with hub(repos) as address:
        yield Stand(address, tmp_path, repos)


def test_takes_what_is_needed_reports_it_and_works_without_network_afterwards(stand: Stand) -> None:
    result = stand.prepare("someone/model")
    folder = Path(str(result["folder"]))
    assert folder.name == COMMIT
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert result["lines"][-1] == "Downloading someone/model: 3 of 3 MB"
    assert result["cached"] == [["someone/model", 3_000_005]]

    unreachable = stand.prepare("someone/model", HF_ENDPOINT="http://127.0.0.1:9")
    offline = stand.prepare("someone/model", HF_HUB_OFFLINE="1")
    assert unreachable["folder"] == offline["folder"] == result["folder"]
    assert sorted(stand.repos.served) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_takes_one_gguf_file_of_a_repository(stand: Stand) -> None:
    stand.repos.files["someone/model-GGUF"] = {"README.md": b"#", "m.Q4.gguf": b"4" * 100, "q8/m.Q8.gguf": b"8" * 100}
    for name, path in (("m.Q4.gguf", "m.Q4.gguf"), ("q8/m.Q8.gguf", "q8/m.Q8.gguf")):
        for separator in ":/":
            result = stand.prepare(f"someone/model-GGUF{separator}{name}")
            assert (Path(str(result["folder"])) / str(result["gguf_file"])).read_bytes() in (b"4" * 100, b"8" * 100)
            assert result["gguf_file"] == path
    assert sorted(stand.repos.served) == ["m.Q4.gguf", "q8/m.Q8.gguf"]

    result = stand.prepare("someone/model-GGUF:m.Q5.gguf")
    assert result["error"] == "ModelNotFound"
    assert "no file m.Q5.gguf in someone/model-GGUF" in str(result["text"])
    assert "m.Q4.gguf, q8/m.Q8.gguf" in str(result["text"])

    result = stand.prepare("someone/model-GGUF")
    assert result["error"] == "ModelNotFound"
    assert "--model someone/model-GGUF:m.Q4.gguf" in str(result["text"])


def test_old_weights_are_taken_where_there_are_no_others(stand: Stand) -> None:
    del stand.repos.files["someone/model"]["model.safetensors"]
    folder = Path(str(stand.prepare("someone/model")["folder"]))
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json", "pytorch_model.bin"}
    assert stand.prepare("someone/model", HF_HUB_OFFLINE="1")["folder"] == str(folder)


def test_a_name_that_does_not_exist(stand: Stand) -> None:
    result = stand.prepare("someone/nothing")
    assert (result["error"], result["cause"]) == ("ModelNotFound", "RepositoryNotFoundError")
    assert "no model someone/nothing on the Hub" in str(result["text"])
    assert "spelling" in str(result["text"])


def test_a_gated_model_says_how_to_get_in(stand: Stand) -> None:
    stand.repos.gated.add("someone/model")
    result = stand.prepare("someone/model")
    assert (result["error"], result["cause"]) == ("ModelError", "GatedRepoError")
    assert "https://huggingface.co/someone/model" in str(result["text"])
    assert "hf auth login" in str(result["text"])


@pytest.mark.parametrize("environ", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_without_network_the_error_says_what_is_there(stand: Stand, environ: dict[str, str]) -> None:
    result = stand.prepare("someone/model", **environ)
    assert result["error"] == "NoNetwork"
    assert "python -m streaming models" in str(result["text"])


def test_an_interrupted_download_is_not_taken_for_a_model_and_goes_on_later(stand: Stand) -> None:
    stand.repos.broken.add("model.safetensors")
    result = stand.prepare("someone/model")
    assert result["error"] == "NoNetwork"
    assert stand.prepare("someone/model", HF_HUB_OFFLINE="1")["error"] == "NoNetwork"

    stand.repos.broken.clear()
    folder = Path(str(stand.prepare("someone/model")["folder"]))
    assert (folder / "model.safetensors").read_bytes() == MODEL["model.safetensors"]


def test_a_repository_without_weights_is_refused_before_anything_is_fetched(stand: Stand) -> None:
    stand.repos.files["someone/model"] = {"config.json": b"{}", "README.md": b"#"}
    result = stand.prepare("someone/model")
    assert result["error"] == "ModelError"
    assert "no weights" in str(result["text"])
    assert stand.repos.served == []
