"""Text as a model or a user wrote it -> Markdown that the Chatbot shows as written.

HTML outside of code becomes visible text: nothing that a model writes may act on the page. Dollar signs become the
brackets that the page's LaTeX renderer knows, where they enclose a formula and not two prices (pandoc's rule). Formulas
are marked, so that page.js can keep them from flickering.
"""

import re

_TOKEN = re.compile(
    r"""
    (?P<code>
        ^[ ]{0,3}(?P<fence>`{3,}|~{3,})[^\n]*(?:\n|\Z)   # a fenced block, closed or still being written
        (?:[\s\S]*?^[ ]{0,3}(?P=fence)[`~]*[ ]*$|[\s\S]*\Z)
      | (?<!`)(?P<ticks>`+)(?!`)[\s\S]+?(?<!`)(?P=ticks)(?!`)
    )
    | (?P<math>\$\$[\s\S]{1,4000}?\$\$ | \\\[[\s\S]{1,4000}?\\\] | \\\([^\n]{1,4000}?\\\))  # bounded: stays linear
    | (?<![\\$\w])\$(?P<inline>(?![\s$])[^$\n]*?[^\s$\\])\$(?![\w$])
    | <(?=[a-zA-Z/!?])(?!https?://)
    """,
    re.VERBOSE | re.MULTILINE,
)


def to_markdown(text: str) -> str:
    """Escape what would be HTML and mark formulas. Linear in the text; safe to call on half an answer."""
    return _TOKEN.sub(_replace, text)


def _replace(match: re.Match[str]) -> str:
    if match["code"] is not None:
        return match[0]
    if match["math"] is not None:
        return _formula(match[0])
    if match["inline"] is not None:
        return _formula(f"\\({match['inline']}\\)")
    return "&lt;"


def _formula(source: str) -> str:
    return f'<span class="math">{source.replace("<", "&lt;")}</span>'
