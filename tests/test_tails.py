"""A tail is taken back without a trace: in no width of a terminal does it touch what was written."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from streaming.tails import Tail

WIDTH = 20


class Line(io.StringIO):
    """A terminal of so many cells that knows just what a tail needs."""

    def cells(self) -> list[str]:
        """What stands in the last line, cell by cell, and how far the cursor has come."""
        line: list[str] = []
        for part in self.getvalue().rpartition("\n")[2].split("\x1b[K"):
            settled, *drawn = part.split("\x1b7")
            line += [character for character in settled for _ in range(cell_len(character))]
            for tail in drawn:
                assert tail.startswith("\x1b[2m")
                text, after = tail.removeprefix("\x1b[2m").split("\x1b[22m\x1b8")
                assert len(line) % WIDTH + cell_len(text) < WIDTH, "it wraps"
                line += [character for character in after for _ in range(cell_len(character))]
        return line


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", "5")


TEXTS = st.text(st.sampled_from("ab é你👋\n"), max_size=30)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6))
def test_what_is_written_stays_and_no_tail_wraps(steps: list[tuple[str, str]]) -> None:
    out = Line()
    tail = Tail(out)
    for settled, tentative in steps:
        tail.clear()
        out.write(settled)
        tail.passed(settled)
        tail.show(tentative)
        tail.show(tentative[:3])
    tail.clear()
    whole = "".join(settled for settled, _ in steps).rpartition("\n")[2]
    assert "".join(out.cells()) == "".join(character * cell_len(character) for character in whole)
    assert out.getvalue().count("\x1b7") == out.getvalue().count("\x1b[K"), "each is wiped out once"


def test_only_the_first_line_of_it_is_shown() -> None:
    out = Line()
    Tail(out).show("one\ntwo")
    assert "one" in out.getvalue()
    assert "two" not in out.getvalue()


def test_in_a_full_line_nothing_is_drawn() -> None:
    """The cursor hangs behind the last cell, and a wipe would take the last letter away."""
    out = Line()
    tail = Tail(out)
    tail.passed("a" * WIDTH)
    tail.show("b")
    tail.clear()
    assert out.getvalue() == ""
