"""Choosing another model: what is offered to whom, what is known of it before, and the way from a choice to an answer.

The Hub is a stand-in on this machine, fetched from by real children; the engine obeys the test, or plays a script.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save

from streaming import hub, memory, weighing
from streaming.config import Config
from streaming.engines.base import Status
from streaming.engines.local import LocalEngine
from streaming.engines.script import Say
from streaming.engines.scripted import ScriptedEngine
from streaming.engines.worker import RESTING
from streaming.errors import InvalidRequest, ModelError, ModelNotFound
from streaming.hub import Description
from streaming.messages import Message
from streaming.picker import SUGGESTIONS, Choice, Picker, Picking
from tests import hub_server
from tests.hub_server import COMMIT, Repos
from tests.puppet import Puppet
from tests.tiny import tiny_folder

TIMEOUT_S = 60
GB = 10**9
EMBEDDED, HEAD, OTHER = 2_000, 3_000, 500
BULK = 30_000_000  # the Hub's library tells of every ten megabytes


def model_files(*, head: bool = False, architecture: str = "LlamaForCausalLM", bulk: int = 0) -> dict[str, bytes]:
    """A folder of a model as far as its description goes."""
    tensors = {
        "model.embed_tokens.weight": np.zeros((100, 20), np.float16),
        "model.norm.weight": np.zeros(OTHER, np.float16),
    }
    if head:
        tensors["lm_head.weight"] = np.zeros((100, 30), np.float16)
    if bulk:
        tensors["bulk"] = np.zeros(bulk, np.int8)
    config = json.dumps({"architectures": [architecture], "model_type": "llama"}).encode()
    return {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": save(tensors)}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@dataclass
class House:
    """A picker over an engine that obeys, the stand-in for the Hub, and the cache."""

    home: Path
    first: Path
    repos: Repos = field(default_factory=Repos)
    engine: Puppet = field(default_factory=Puppet)
    pickers: list[Picker] = field(default_factory=list)

    def picker(self, **settings: object) -> Picker:
        own: dict[str, object] = {"model": str(self.first), "cache_dir": self.home / "starter"}
        self.pickers.append(Picker(self.engine, Config(**(own | settings))))  # type: ignore[arg-type]
        return self.pickers[-1]

    def keep(self, repo: str, files: dict[str, bytes]) -> None:
        """Put a model into the Hub's cache."""
        folder = self.home / "hub" / f"models--{repo.replace('/', '--')}"
        write(folder / "snapshots" / COMMIT, files)
        write(folder / "refs", {"main": COMMIT.encode()})


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(memory, "free_memory", lambda: 5 * GB)  # without a library that takes seconds to come
    monkeypatch.setattr(memory, "free_main_memory", lambda: 4 * GB)
    monkeypatch.setattr(memory, "accelerated", lambda: False)
    house = House(tmp_path, write(tmp_path / "first", model_files()))
    house.engine.state = Status("ready", str(house.first))
    house.repos.files["owner/other"] = model_files(head=True, bulk=BULK)
    with hub_server.hub(house.repos) as address:
        hub_server.go_there(monkeypatch, address, tmp_path / "hub")
        yield house
        for picker in house.pickers:
            picker.close()


def wait_for(true: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def settled(picker: Picker) -> Picking:
    wait_for(lambda: picker.picking().state in ("idle", "failed"))
    return picker.picking()


# -- what there is


def test_it_offers_what_answers_what_is_here_and_what_would_fit(house: House) -> None:
    house.keep("owner/kept", model_files(head=True))
    house.keep("owner/half", {"config.json": b"{}"})
    house.keep("owner/encoder", model_files(architecture="BertModel"))
    house.keep("owner/packed", {"small.gguf": b"g" * 100, "large.gguf": b"g" * 200})
    picker = house.picker()
    assert (picker.offered, picker.hub) == (True, True)
    choices = picker.choices()
    assert [(choice.name, choice.origin) for choice in choices[:5]] == [
        (str(house.first), "loaded"),
        ("owner/kept", "cached"),
        ("owner/packed:large.gguf", "cached"),
        ("owner/packed:small.gguf", "cached"),
        ("starter", "suggested"),
    ]
    first, kept, large, *_ = choices
    assert first == Choice(
        str(house.first),
        "first",
        "loaded",
        (house.first / "model.safetensors").stat().st_size,
        EMBEDDED + OTHER,
        int(1.1 * 4 * (2 * EMBEDDED + OTHER)),  # a head that shares the embedding's weights is laid out beside them
        True,
    )
    assert (kept.title, kept.parameters) == ("kept", EMBEDDED + HEAD + OTHER)
    assert kept.needs_bytes == int(1.1 * 4 * (EMBEDDED + HEAD + OTHER))
    assert (large.size_bytes, large.parameters, large.fits) == (200, 0, None)
    suggested = {choice.name: choice for choice in choices[5:]}
    assert set(suggested) == {name for name, millions in SUGGESTIONS.items() if 1.1 * 4 * millions * 10**6 <= 5 * GB}
    assert 0 < len(suggested) < len(SUGGESTIONS)
    assert all(choice.fits and choice.origin == "suggested" for choice in suggested.values())


def test_what_the_loaded_model_gives_back_counts_as_free(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    picker = house.picker()
    needs = picker.look_up("owner/other").needs_bytes
    gives_back = 4 * (2 * EMBEDDED + OTHER)
    monkeypatch.setattr(memory, "free_memory", lambda: needs - gives_back)
    assert picker.look_up("owner/other").fits is True
    house.engine.state = replace(house.engine.state, detail=RESTING)
    assert picker.look_up("owner/other").fits is False, "it has been given back already"
    house.engine.state = Status("failed", str(house.first))
    monkeypatch.setattr(memory, "free_main_memory", lambda: needs)
    assert picker.look_up("owner/other").fits is True
    monkeypatch.setattr(memory, "free_main_memory", lambda: needs - 1)
    assert picker.look_up("owner/other").fits is None, "there may be an accelerator that nobody has looked for"


@pytest.mark.parametrize(
    ("dtype", "accelerated", "each", "copies"),
    [("auto", False, 4, True), ("bfloat16", False, 2, True), ("auto", True, 2, False), ("float32", True, 4, False)],
)
def test_what_a_model_needs_depends_on_the_precision_that_it_will_have(
    house: House, monkeypatch: pytest.MonkeyPatch, dtype: str, accelerated: bool, each: int, copies: bool
) -> None:
    monkeypatch.setattr(memory, "accelerated", lambda: accelerated)
    choice = house.picker(dtype=dtype).look_up(str(house.first))
    assert choice.needs_bytes == int(1.1 * (each * (EMBEDDED + OTHER + EMBEDDED * copies)))


def test_one_of_the_hub_is_looked_up_before_anything_of_it_is_fetched(house: House) -> None:
    choice = house.picker().look_up("owner/other")
    assert (choice.title, choice.origin) == ("other", "asked")
    assert choice.size_bytes == sum(len(data) for data in house.repos.files["owner/other"].values())
    assert choice.parameters == EMBEDDED + HEAD + OTHER + BULK
    assert house.repos.served == []
    assert not (house.home / "hub").exists(), "nor does the cache have a part of it now"


def test_what_cannot_be_chosen_is_said_when_it_is_looked_up(house: House) -> None:
    picker = house.picker()
    with pytest.raises(ModelNotFound, match="no model owner/nothing on the Hub"):
        picker.look_up("owner/nothing")
    with pytest.raises(ModelNotFound, match="neither a config"):
        picker.look_up(str(house.home))
    house.repos.files["owner/encoder"] = model_files(architecture="BertModel")
    with pytest.raises(ModelError, match="does not write text as a chat needs it"):
        picker.look_up("owner/encoder")
    house.repos.gated.add("owner/other")
    with pytest.raises(ModelError, match="accepted its terms"):
        picker.look_up("owner/other")


@pytest.mark.usefixtures("house")
def test_of_many_files_the_hub_tells_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "describe", lambda *_: Description(6 * GB, 3 * GB, {}, ()))
    weight = weighing.weigh("owner/large", None)
    assert (weight.here, weight.size_bytes, weight.parameters, weight.shared) == (False, 6 * GB, 3 * GB, 0)


# -- who may choose what


@pytest.mark.parametrize(
    ("settings", "name", "refusal"),
    [
        ({}, "owner/other", None),
        ({}, "FIRST", None),
        ({}, "", "Name a model"),
        ({}, "x" * 5_000, "Name a model"),
        ({"allow_model": "starter, owner/*"}, "owner/other", None),
        ({"allow_model": "starter, owner/*"}, "owner/other:Q4.gguf", None),
        ({"allow_model": "owner/other"}, "owner/other:Q4.gguf", None),
        ({"allow_model": "owner/other"}, "owner/others", "may not be chosen here. What may: owner/other"),
        ({"allow_model": "starter"}, "FIRST", None),  # what was named at the start can be gone back to
        ({"allow_model": "starter"}, "/etc/passwd", "may not be chosen here"),
        ({"public": True}, "owner/other", "--allow-model"),
        ({"share": True, "auth_file": Path("logins")}, "owner/other", "--allow-model"),
        ({"host": "0.0.0.0", "public": True, "allow_model": "*"}, "owner/other", None),
        ({"public": True, "allow_model": "*"}, "FIRST", None),
        ({"public": True, "allow_model": "*"}, "HOME", "name a model of the Hub"),
        ({"public": True, "allow_model": "*"}, "relative/folder", "name a model of the Hub"),
        ({"public": True, "allow_model": "*"}, "no/such/folder", "name a model of the Hub"),
        ({"public": True, "allow_model": "*"}, "../first", "name a model of the Hub"),
        ({"public": True, "allow_model": "*"}, "~/x", "name a model of the Hub"),
        ({"public": True, "allow_model": "*"}, "a\0b", "name a model of the Hub"),
        ({"public": True, "allow_model": "*"}, "$(touch x)\n", "name a model of the Hub"),
    ],
)
def test_what_may_be_chosen_where(
    house: House, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], name: str, refusal: str | None
) -> None:
    write(house.home / "relative" / "folder", model_files())
    monkeypatch.chdir(house.home)
    name = {"FIRST": str(house.first), "HOME": str(house.home / "relative" / "folder")}.get(name, name)
    monkeypatch.setattr(weighing, "weigh", lambda name, _: weighing.Weight(name, False, 0))
    house.engine.state = Status("ready", "another")
    picker = house.picker(**settings)
    if refusal is None:
        assert picker.look_up(name).name == name
        return
    for ask in (picker.look_up, picker.choose):
        with pytest.raises(InvalidRequest, match=refusal):
            ask(name)
    assert picker.picking() == Picking("idle")


def test_a_model_whose_files_are_gone_and_a_cache_that_is_none_are_no_obstacle(house: House) -> None:
    shutil.rmtree(house.first)
    (house.home / "hub").write_text("no folder")
    first, *others = house.picker().choices()
    assert (first.name, first.origin, first.size_bytes) == (str(house.first), "loaded", 0)
    assert {choice.origin for choice in others} == {"suggested"}


def test_where_it_is_not_offered_nothing_is_listed(house: House) -> None:
    picker = house.picker(public=True)
    assert (picker.offered, picker.hub) == (False, False)
    assert picker.choices() == []


def test_only_what_may_be_chosen_is_listed(house: House) -> None:
    house.keep("owner/kept", model_files())
    house.keep("stranger/kept", model_files())
    picker = house.picker(public=True, allow_model="owner/*,Qwen/Qwen3-0.6B")
    assert [choice.name for choice in picker.choices()] == [str(house.first), "owner/kept", "Qwen/Qwen3-0.6B"]


# -- what becomes of a choice


def test_a_choice_is_fetched_given_up_chosen_again_and_answers(house: House) -> None:
    picker = house.picker()
    house.repos.gate = threading.Event()
    picker.choose("owner/other")
    assert picker.picking().state == "fetching"
    wait_for(lambda: (picker.picking().fraction or 0) > 0.3)
    assert picker.picking().detail.startswith("Downloading owner/other: ")
    with pytest.raises(InvalidRequest, match="other is on its way already"):
        picker.choose("starter")
    picker.cancel()
    assert picker.picking() == Picking("idle")
    wait_for(lambda: not psutil.Process().children())
    assert house.engine.switches == []

    house.repos.gate.set()
    picker.choose("owner/other")
    wait_for(lambda: house.engine.switches)
    ((name, done),) = house.engine.switches
    assert (name, picker.picking().state) == ("owner/other", "waiting")
    assert picker.picking().detail == "Waiting for the answers under way, then loading owner/other"
    house.engine.state = Status("loading", "owner/other", "Loading owner/other into memory")
    assert picker.picking() == Picking("loading", "owner/other", "Loading owner/other into memory")
    house.engine.state = Status("ready", "owner/other")
    done(None)
    assert picker.picking() == Picking("idle")
    assert picker.choices()[0].name == "owner/other"
    with pytest.raises(InvalidRequest, match="other is in use already"):
        picker.choose("owner/other")


def test_what_cannot_be_fetched_is_said_until_the_next_choice(house: House) -> None:
    picker = house.picker()
    picker.choose("owner/nothing")
    failed = settled(picker)
    assert (failed.state, failed.name) == ("failed", "owner/nothing")
    assert "There is no model owner/nothing on the Hub" in failed.detail
    picker.choose(str(write(house.home / "folder", model_files())))
    wait_for(lambda: house.engine.switches)
    assert picker.picking().state == "waiting"


def test_what_does_not_fit_is_not_fetched(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1_000_000)
    picker = house.picker()
    picker.choose("owner/other")
    failed = settled(picker)
    assert "owner/other does not fit into memory: it needs about 132 MB, and 1 MB are free here" in failed.detail
    assert (house.repos.served, house.engine.switches) == ([], [])


def test_a_folder_of_this_machine_is_switched_to_as_it_stands(house: House) -> None:
    folder = write(house.home / "folder", model_files())
    picker = house.picker()
    picker.choose(str(folder))
    wait_for(lambda: house.engine.switches)
    picker.cancel()
    assert (house.engine.switches, picker.picking()) == ([], Picking("idle"))
    picker.choose(str(folder / "config.json"))
    assert "not a .gguf file" in settled(picker).detail


def test_one_that_loads_cannot_be_given_up_and_says_why_it_failed(house: House) -> None:
    picker = house.picker()
    picker.choose(str(write(house.home / "folder", model_files())))
    wait_for(lambda: house.engine.switches)
    _, done = house.engine.switches.pop()  # there is nothing to be called off any more
    picker.cancel()
    assert picker.picking().name == str(house.home / "folder")
    done(ModelError("It is broken."))
    assert picker.picking() == Picking("failed", str(house.home / "folder"), "It is broken.")


@pytest.mark.parametrize("refusal", [InvalidRequest("Another model is being loaded."), RuntimeError("unforeseen")])
def test_a_switch_that_is_refused_is_said(house: House, refusal: Exception) -> None:
    house.engine.refusal = refusal
    picker = house.picker()
    picker.choose(str(write(house.home / "folder", model_files())))
    assert str(refusal) in settled(picker).detail


def test_closing_ends_what_is_being_fetched(house: House) -> None:
    picker = house.picker()
    house.repos.gate = threading.Event()
    picker.choose("owner/other")
    assert house.repos.held.acquire(timeout=TIMEOUT_S)
    picker.close()
    picker.close()
    assert psutil.Process().children() == []
    with pytest.raises(InvalidRequest, match="being closed"):
        picker.choose("owner/other")
    assert house.engine.switches == []


def test_a_script_has_others_too_and_one_that_is_broken() -> None:
    engine = ScriptedEngine(lambda _: [Say("Yes.")], load_s=0.05)
    picker = Picker(engine, Config(engine="scripted"))
    assert (picker.offered, picker.hub) == (True, False)
    assert [(choice.name, choice.origin) for choice in picker.choices()] == [
        ("scripted", "loaded"),
        ("scripted-b", "server"),
        ("scripted-broken", "server"),
    ]
    assert picker.look_up("scripted-b").fits is None
    for name in ("owner/other", "scripted-c"):
        with pytest.raises(InvalidRequest, match="there are scripted, scripted-b"):
            picker.choose(name)
    engine.wait_ready()
    picker.choose("scripted-b")
    assert settled(picker) == Picking("idle")
    *_, finished = engine.stream([Message("user", "Hello")])
    assert finished.model == "scripted-b"  # type: ignore[union-attr]
    picker.choose("scripted-broken")
    assert "broken on purpose" in settled(picker).detail
    assert engine.status().model == "scripted-b"
    picker.cancel()
    assert picker.picking() == Picking("idle"), "it has been read"
    picker.close()
    engine.close()


def test_a_real_model_of_the_hub_answers_in_the_place_of_another(house: House) -> None:
    folder = tiny_folder(house.home / "tiny", seed=1)
    house.repos.files["owner/tiny"] = {file.name: file.read_bytes() for file in folder.iterdir()}
    config = Config(model=str(tiny_folder(house.home / "before")), max_new_tokens=4, cache_dir=house.home)
    engine = LocalEngine(config)
    picker = Picker(engine, config)
    engine.wait_ready()
    before = engine.stream([Message("user", "Hello")])
    picker.choose("owner/tiny")
    assert settled(picker) == Picking("idle")
    assert picker.choices()[0].name == "owner/tiny"
    models = [list(generation)[-1].model for generation in (before, engine.stream([Message("user", "Hello")]))]  # type: ignore[union-attr]
    assert models == [config.model, "owner/tiny"]
    picker.close()
    engine.close()
