"""The rules of docs/architecture.md that a reader of one file cannot see: who may import whom, and what stays small."""

import ast
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up. A module may import what stands on a lower line, and never its neighbours on the same one.
LAYERS = (
    "errors",
    "messages events standin tails pdf",
    "attachments allowance",
    "config detokenizer stops reasoning templates disk passwords search waiters beams layers precision",
    "starter hub memory packing int8 conversation news",
    "models listing rows schema openwebui",
    "assembler streamers fetching weighing saving reading database portable",
    "engines.base engines.script engines.stopwatch engines.decoding engines.prefixes engines.sampler engines.attention",
    "engines.queue engines.answers engines.paged engines.prompts",
    "engines.speculation",
    "engines.strategies",
    "engines.worker engines.generate",
    "engines.batching engines.zero_gpu",
    "engines.lanes",
    "engines.transcript engines.refusals engines.fitting",
    "engines.server",
    "engines.relay",
    "engines.scripted engines.local engines.remote",
    "engines",
    "runs pipelines store race picker",
    "turns shelf",
    "library",
    "chats",
    "api terminal",  # with all in api/
    "ui",  # with all in it
    "__init__",
    "__main__",
)
LEVEL = {f"streaming.{name}": level for level, line in enumerate(LAYERS) for name in line.split()}
PACKAGES = ("streaming.api", "streaming.ui")  # one layer each, with all in it
SOFT_CAP = 320  # lines of code; 250 is the aim
FILES = [*sorted((ROOT / "streaming").rglob("*.py")), ROOT / "app.py"]
EVERY_FILE = [*FILES, *sorted((ROOT / "benchmarks").rglob("*.py"))]


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    """As Python calls it, but the top package `streaming.__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


MODULES = {module_name(path) for path in FILES}


def package_or_module(module: str) -> str:
    """The name in LAYERS that a module falls under."""
    name = next((package for package in PACKAGES if module.startswith(f"{package}.")), module)
    assert name in LEVEL, f"{module} has no layer: give it its place in LAYERS and in docs/architecture.md"
    return name


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere in it, inside functions and for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def own_imports(path: Path) -> set[str]:
    found = {name for name in imports(path) if name.split(".")[0] == "streaming"}
    return {"streaming.__init__" if name == "streaming" else name for name in found}


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "app.py"], ids=by_path)
def test_imports_go_strictly_downward(path: Path) -> None:
    here = package_or_module(module_name(path))
    for name in own_imports(path):
        there = package_or_module(name)
        within = here == there and here in PACKAGES
        assert LEVEL[there] < LEVEL[here] or within, f"{by_path(path)} may not import {name}"


def test_every_module_has_its_layer_and_its_line_in_the_picture_of_the_house() -> None:
    assert {package_or_module(module) for module in MODULES - {"app"}} == set(LEVEL)
    told = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [path.name for path in FILES if path.name not in told]


@pytest.mark.parametrize("path", FILES, ids=by_path)
def test_gradio_is_for_the_page_alone_and_fastapi_for_the_api(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports(path)}
    if "streaming/ui" not in path.as_posix():
        assert "gradio" not in outside
    if "streaming/api" not in path.as_posix():
        assert "fastapi" not in outside


@pytest.mark.parametrize(
    "module",
    ["streaming", "streaming.terminal", "streaming.models", "streaming.engines.remote", "app"],
)
def test_importing_loads_no_model_library(module: str) -> None:
    """A page that imports torch first is up seconds later, and `import app` is what a Space and editors do."""
    code = f"import sys, {module}; print(*(name for name in ('torch', 'transformers') if name in sys.modules))"
    clean = {"PATH": "", "HOME": str(Path.home()), "GRADIO_ANALYTICS_ENABLED": "False"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", EVERY_FILE, ids=by_path)
def test_a_file_is_small_enough_to_be_read_at_once(path: Path) -> None:
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with path.open("rb") as file:
        lines = {
            line
            for token in tokenize.tokenize(file.readline)
            if token.type not in nothing and token.type != tokenize.ENCODING
            for line in range(token.start[0], token.end[0] + 1)
        }
    assert len(lines) <= SOFT_CAP


def test_nothing_is_called_utils() -> None:
    assert not [path for path in EVERY_FILE if path.stem in ("utils", "util", "helpers", "common", "misc")]


@pytest.mark.parametrize("path", EVERY_FILE, ids=by_path)
def test_every_module_says_what_it_is(path: Path) -> None:
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert told or not path.read_text(encoding="utf-8").strip()
    assert len((told or "").splitlines()) <= 6


@pytest.mark.parametrize("path", EVERY_FILE, ids=by_path)
def test_no_module_keeps_state(path: Path) -> None:
    """One user's Stop is everybody's where the stop flag is a global. What a module holds is constant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global)], "a global statement"
    constants = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    named_like_variables = {name for name in constants if name.strip("_")[0].islower()} - {"__all__"}
    assert named_like_variables <= ({"app", "demo"} if path.name == "app.py" else set())
    assert not constants & set(changed(tree)), "a constant that changes"


MUTATORS = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove", "discard"}


def changed(tree: ast.Module) -> Iterator[str]:
    """Names of which an item is set or deleted, or on which a method is called that changes a container."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            target = node.func.value
        else:
            continue
        if isinstance(target, ast.Name):
            yield target.id
