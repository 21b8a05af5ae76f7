"""The README is the door: what it says about commands, flags and files is checked against what there is."""

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from streaming.config import PREFIX, Config
from streaming.engines import Engine
from tests.tiny import tiny_folder, tiny_model
from tests.tokenizers import byte_level_bpe

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_a_space_can_read_its_front_matter(readme: str) -> None:
    front = yaml.safe_load(readme.split("---\n")[1])
    assert set(front) >= {"title", "emoji", "colorFrom", "colorTo", "license"}
    assert front["sdk"] == "gradio"
    assert front["sdk_version"] == pins("requirements.txt")["gradio"]
    assert front["python_version"] == "3.11"
    assert (ROOT / front["app_file"]).is_file()
    assert len(front["short_description"]) <= 60


def test_the_quick_start_is_two_commands(readme: str) -> None:
    section = readme.split("## Quick start\n")[1].split("\n## ")[0]
    commands = re.findall(r"^```bash\n(.*?)\n```$", section, re.M | re.S)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        ".venv/bin/python app.py",
        ".venv/bin/python -m pytest -n 2 --dist loadfile",
    ]
    assert all("\n" not in command for command in commands)
    for name in re.findall(r"-r (\S+)", section):
        assert (ROOT / name).is_file()


def test_the_table_of_flags_lists_exactly_the_settings_there_are(readme: str) -> None:
    table = re.findall(r"^\| `--([a-z-]+)` \| `([^`]*)` \|", readme, re.M)
    shown = {False: "off", None: "none"}
    assert dict(table) == {
        item.name.replace("_", "-"): shown.get(item.default, str(item.default)) for item in fields(Config)
    }
    assert f"`{PREFIX}`" in readme


def test_every_file_that_is_named_is_there(readme: str) -> None:
    named = set(re.findall(r"\]\(((?!http)[^)#]+)\)", readme)) | set(re.findall(r"`([\w/]+(?:\.py|\.md|/))`", readme))
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / "streaming" / name).exists()}
    assert not missing


def test_the_engine_is_shown_as_it_is(readme: str) -> None:
    shown = readme.split("class Engine(Protocol):\n")[1].split("```")[0]
    methods = {name for name, value in vars(Engine).items() if callable(value) and not name.startswith("_")}
    assert set(re.findall(r"def (\w+)", shown)) == methods


def test_its_python_runs(readme: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The examples for users of the library, on a tiny random model and on the scripted engine."""
    piped, around_generate, engine = re.findall(r"^```python\n(from.*?)^```$", readme, re.M | re.S)
    exec(piped.replace('"starter"', repr(str(tiny_folder(tmp_path)))), {})
    assert capsys.readouterr().out
    tokenizer = byte_level_bpe()
    exec(around_generate, {"model": tiny_model(tokenizer), "tokenizer": tokenizer})
    assert capsys.readouterr().out
    exec(engine.replace('model="starter"', 'engine="scripted", max_new_tokens=3'), {})
    assert capsys.readouterr().out.splitlines()[-1].startswith("Finished(reason='length'")


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_pinned(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"#.*|-r \S+|[A-Za-z0-9_.-]+==[0-9.]+|", line) for line in lines)


def test_every_package_that_is_imported_is_named() -> None:
    """What another package happens to bring along today, it may not tomorrow."""
    imported: set[str] = set()
    for path in [*(ROOT / "streaming").rglob("*.py"), ROOT / "app.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    named = {name.lower() for name in pins("requirements.txt")}
    assert {name.lower() for name in imported - sys.stdlib_module_names - {"streaming"}} <= named
