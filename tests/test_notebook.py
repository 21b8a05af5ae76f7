"""The notebook, run from top to bottom in a real kernel on the starter model, as a reader runs it."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOK = FOLDER / "streaming.ipynb"


@pytest.fixture(scope="module")
def ran(starter_folder: Path) -> list[Any]:
    """The code cells with what they have put out."""
    assert starter_folder.is_dir(), "the kernel finds it where it is"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": FOLDER}}).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cells: list[Any], containing: str) -> str:
    """What the one cell with this in its source has put out, as text."""
    [cell] = [cell for cell in cells if containing in cell.source]
    return "".join(
        output.get("text", "") or str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs
    )


def test_it_is_kept_without_its_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert not [cell.source for cell in cells if cell.outputs or cell.execution_count is not None]


@pytest.mark.timeout(1200)
def test_it_runs_from_top_to_bottom(ran: list[Any]) -> None:
    assert shown(ran, "REPOSITORY") == "", "everything is there: the first cell has nothing to install"
    assert "tide" in shown(ran, "What is a tide?").lower()
    assert shown(ran, "def enough").strip().endswith("12 tokens")
    engine = shown(ran, "people = {")
    assert [line.partition(":")[0] for line in engine.splitlines()] == ["Ann", "Ben", "Cem", "Dea"]
    assert "reason='cancelled'" in shown(ran, "generation.cancel()")
    beams = shown(ran, "Beam(num_beams=3)")
    assert "tentative: [" in beams
    assert "settled:   '" in beams
    assert shown(ran, "client.predict").strip("'\n"), "the chat answers"


@pytest.mark.timeout(1200)
def test_the_race_is_drawn(ran: list[Any]) -> None:
    [cell] = [cell for cell in ran if "plt.step" in cell.source]
    assert any("image/png" in output.get("data", {}) for output in cell.outputs)
