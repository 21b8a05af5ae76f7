"""The dim end of a line in a terminal: text that may still change, drawn behind the cursor and wiped out again.

Knows no events, and what it draws is not its to judge: the text must be inert. Only as much is shown as fits into the
rest of the line, since what has scrolled or wrapped could not be taken back.
"""

import shutil
from typing import TextIO

from rich.cells import cell_len

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"
_WIPE = "\x1b[K"
_MARGIN = 2  # cells that are left free: some terminals take a wide character for two, some for one


class Tail:
    """One answer's, on a terminal whose line is empty at first."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._line = ""  # what stands in the line of the cursor
        self._shown = False

    def passed(self, text: str) -> None:
        """This has been written where the tail was, after a `clear`."""
        self._line = (self._line + text).rpartition("\n")[2]

    def show(self, text: str) -> None:
        """In the place of the tail before, which may have been longer."""
        self.clear()
        column = cell_len(self._line.expandtabs(8)) % (width := shutil.get_terminal_size().columns)
        if self._line and not column:  # the cursor hangs at the end of the full line
            return
        tail = _fitting(text.partition("\n")[0].replace("\t", " "), width - column - _MARGIN)
        if tail:
            self._out.write(f"{_SAVE}{_DIM}{tail}{_PLAIN}{_RESTORE}")
            self._out.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._out.write(_WIPE)
            self._out.flush()
            self._shown = False


def _fitting(text: str, cells: int) -> str:
    """The longest beginning of `text` that takes no more than so many cells."""
    for count, character in enumerate(text):
        cells -= cell_len(character)
        if cells < 0:
            return text[:count]
    return text
