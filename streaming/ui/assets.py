"""The page's files under assets/, and the little HTML that has values in it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import segno

FOLDER = Path(__file__).resolve().parents[2] / "assets"


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def script(*names: str) -> str:
    """The scripts of assets/script/ as one function body: they share its constants, and the last one begins."""
    return "\n".join(read(f"script/{name}.js") for name in names)


def style(name: str) -> str:
    """A style sheet as it stands: Gradio rewrites what it is given as `css`, and takes media queries for its own part
    of the page only."""
    return f"<style>{read(f'{name}.css')}</style>"


def fill(name: str, **values: str) -> str:
    """A file of assets/ with its `$names` replaced by escaped values."""
    return Template(read(name)).substitute({key: escape(value) for key, value in values.items()})


def greeting(model: str, examples: Sequence[tuple[str, str]]) -> str:
    """What an empty page says; page.js sends an example when it is clicked."""
    buttons = "".join(
        f'<button class="example" data-text="{escape(text)}"><b>{escape(title)}</b><span>{escape(text)}</span></button>'
        for title, text in examples
    )
    return f'<h1>Chat with {escape(model)}</h1><div class="examples">{buttons}</div>'


def share(url: str) -> str:
    """The panel with the public link, and its QR code for a phone's camera."""
    return fill("share.html", url=url, code=segno.make(url).svg_data_uri(border=2, scale=8))
