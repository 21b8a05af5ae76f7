"""Text as a model or a user wrote it -> Markdown that the Chatbot shows as written.

HTML outside of code becomes visible text: nothing that a model writes may act on the page. What the browser's parser
might not take for code is not left raw as code either. Dollar signs become the brackets that the page's LaTeX renderer
knows, where they enclose a formula and not two prices (pandoc's rule); page.js keeps marked formulas from flickering.
"""

import re

_DIAGRAM = re.compile(r"(`{3,}|~{3,})[ \t]*mermaid\b", re.IGNORECASE)
_TAG = re.compile(r"<(?=[a-zA-Z/!?])")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_FORMULA_MARK = re.compile(r"&#(?:36|92);")  # the renderer finds formulas in what is shown, but not across elements
_FENCE = re.compile(r"(?P<indent> {0,3})(?P<marker>`{3,}(?=[^`\n]*$)|~{3,}).*")
_NESTED_FENCE = re.compile(r"(?:[ \t]{4}|[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]|[ ]*\t)[ \t>*+\-.)\d]*(?:`{3}|~{3})")
_TOKEN = re.compile(
    r"""
    (?<!`)(?P<ticks>`+)(?!`)(?P<code>(?:[^\n]|\n(?![ \t]*\n)){1,4000}?)(?<!`)(?P=ticks)(?!`)
    | (?P<math>  # bounded, and ended by the next opening: stays linear
        \$\$[\s\S]{1,4000}?\$\$
      | \\\[(?:(?!\\\[)[\s\S]){1,4000}?\\\]
      | \\\((?:(?!\\\()[^\n]){1,4000}?\\\))
    | (?<![\\$\w])\$(?P<inline>(?![\s$])[^$\n]*?[^\s$\\])\$(?![\w$])
    | <(?=[a-zA-Z/!?])(?!https?://)
    """,
    re.VERBOSE,
)


def to_markdown(text: str) -> str:
    """Escape what would be HTML and mark formulas. Linear in the text; safe to call on half an answer."""
    shown: list[str] = []
    prose: list[str] = []
    blocks = _Blocks()
    # A diagram would be drawn again with every word, and its labels may hold HTML: its source is shown instead.
    text = _DIAGRAM.sub(r"\1text", re.sub(r"\r\n?", "\n", text))
    for line in text.split("\n"):
        if blocks.is_code(line):
            if prose:
                shown.append(_TOKEN.sub(_replace, "\n".join(prose)))
                prose = []
            shown.append(line if blocks.sure else _TAG.sub("&lt;", line))
        else:
            prose.append(line)
    if prose:
        shown.append(_TOKEN.sub(_replace, "\n".join(prose)))
    return "\n".join(shown)


def dimmed_after(text: str, tail: str) -> str:
    """What may follow `text`, but may still change, as HTML in which nothing acts.

    "" where `text` may end in code, or in a backslash: there the HTML would be read as text.
    """
    tail = " ".join(tail.splitlines())
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    if not tail.strip() or text.endswith("\\") or lines[-1].startswith(("    ", "\t")):
        return ""
    blocks = _Blocks()
    in_code = [blocks.is_code(line) for line in lines][-1]
    if in_code or blocks.unsure:
        return ""
    shown = _FORMULA_MARK.sub(r"<span>\g<0></span>", _inert(tail))
    return f'<span class="tentative">{shown}</span>'


class _Blocks:
    """Which lines are fenced code, and whether the browser's parser is `sure` to think so too.

    A fence at the margin ends every list and quote, so it is sure. An indented one may be a list's: it is sure as long
    as no fence may be hidden in a list before it and no line of it leaves the list. Once the two views could part, no
    later line is sure.
    """

    def __init__(self) -> None:
        self._marker = ""  # of the open fence
        self._indent = 0
        self._hidden = self._parted = False
        self.sure = True

    @property
    def unsure(self) -> bool:
        """Whether the browser's parser may see code where there is none here."""
        return self._hidden or self._parted

    def is_code(self, line: str) -> bool:
        if not self._marker:
            fence = _FENCE.fullmatch(line)
            if fence is None:
                self._hidden = self._hidden or _NESTED_FENCE.match(line) is not None
                return False
            self._marker, self._indent = fence["marker"], len(fence["indent"])
            self.sure = not self._parted and not (self._indent and self._hidden)
            return True
        if self._indent and line.strip() and len(line) - len(line.lstrip(" ")) < self._indent:
            self._parted, self.sure = True, False
        if re.fullmatch(rf" {{0,3}}{self._marker}[`~]* *", line):  # marked's rule, which is not quite CommonMark's
            self._marker = ""
        return True


def _replace(match: re.Match[str]) -> str:
    if match["code"] is not None:
        return _code(match["code"]) if _TAG.search(match["code"]) else match[0]
    if match["math"] is not None:
        return _formula(match["math"])
    if match["inline"] is not None:
        return _formula(f"\\({match['inline']}\\)")
    return "&lt;"


def _code(source: str) -> str:
    """As HTML with nothing in it that Markdown knows: inert wherever the browser's parser finds it."""
    body = source.replace("\n", " ")
    if body.strip() and body[0] == body[-1] == " ":  # CommonMark's rule
        body = body[1:-1]
    return f"<code>{_inert(body)}</code>"


def _inert(text: str) -> str:
    return _PUNCTUATION.sub(lambda mark: f"&#{ord(mark[0])};", text)


def _formula(source: str) -> str:
    return f'<span class="math">{source.replace("<", "&lt;")}</span>'
