"""Markdown as written: HTML is shown and not obeyed, formulas are found, code is left alone."""

import pytest

from streaming.ui.markup import dimmed_after, to_markdown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a <b>bold</b> word", "a &lt;b>bold&lt;/b> word"),
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("<!-- c --> <?x?>", "&lt;!-- c --> &lt;?x?>"),
        ("see <test> and <think> in prose", "see &lt;test> and &lt;think> in prose"),
        ("1 < 2 and 3 > 2, a <3 b", "1 < 2 and 3 > 2, a <3 b"),
        ("<https://example.org>", "<https://example.org>"),
        ("`a<3` and ``a ` b``", "`a<3` and ``a ` b``"),
        ("`<b>` and `` a` <i>``", "<code>&#60;b&#62;</code> and <code> a&#96; &#60;i&#62;</code>"),
        ("1. a\n   ```c\n   #include <stdio.h>\n   ```\n<b>", "1. a\n   ```c\n   #include <stdio.h>\n   ```\n&lt;b>"),
        ("```html\n<div>\n```\n<div>", "```html\n<div>\n```\n&lt;div>"),
        ("~~~\n<div>\n```\n<p>\n~~~\n<p>", "~~~\n<div>\n```\n<p>\n~~~\n&lt;p>"),
        ("```\n<div>\nstill being written", "```\n<div>\nstill being written"),
        ("a ` lone tick <b>", "a ` lone tick &lt;b>"),
        ("costs $5 and $6", "costs $5 and $6"),
        ("from $5 to $10.", "from $5 to $10."),
        ("Euler: $e^{i\\pi} + 1 = 0$.", 'Euler: <span class="math">\\(e^{i\\pi} + 1 = 0\\)</span>.'),
        ("$a<b$", '<span class="math">\\(a&lt;b\\)</span>'),
        ("$$\na<b\n$$", '<span class="math">$$\na&lt;b\n$$</span>'),
        (
            "\\[x\\] and \\(y<z\\)",
            '<span class="math">\\[x\\]</span> and <span class="math">\\(y&lt;z\\)</span>',
        ),
        ("in code `$x$`", "in code `$x$`"),
        ("```mermaid\ngraph TD\n```", "```text\ngraph TD\n```"),
        ("- ~~~ Mermaid\n  graph TD", "- ~~~text\n  graph TD"),
        ("- a\n    - b\n    - c", "- a\n    - b\n    - c"),
        ("", ""),
    ],
)
def test_text_is_shown_as_written(written: str, shown: str) -> None:
    assert to_markdown(written) == shown


@pytest.mark.parametrize(
    "disguise",
    [
        "a `\n\n{} ` b",
        "\\`{}`",
        "- a\n  ```\n  x\n\nout {}",
        "- ```\n  x\n  ```\n{}",
        "- a\n\n      ```\n      x\n  ```\n{}",
        " ```\nx\n ```\n{}\n",
        "$$\n```\n$$\n```\n{}\n```",
        "`a\n```\n`\n```\n{}\n```",
        "``` a`b\n{}",
        "```\n```~\n{}",
        "```\u2028```\n{}",
        "```\r```\r{}",
        "[a](`) {} `",
        "http://a.example/` {}`",
        "| a | b |\n|---|---|\n| ` {} | ` |",
        "\\( `" + "a" * 5000 + "\\) {} `",
    ],
)
def test_html_does_not_pass_as_code(disguise: str) -> None:
    """Found by attack: text that looked like code here, and not to the browser's parser, covered the page, doubled its
    ids, and sent a request to another server."""
    assert "<video" not in to_markdown(disguise.format("<video src=//a.example>"))


def test_long_hostile_text_is_read_in_linear_time() -> None:
    """Each doubling of the text may not quadruple the work: openings that never close are the classic trap."""
    for opening in ("<", "`", "``` ", "$a", "\\(", "\\[", "\\( ", "$$", "`a``b", "\n```", "\n~~~x"):
        to_markdown(opening * 20_000)


def test_what_may_still_change_is_inert_and_dim() -> None:
    shown = dimmed_after("It is", " <b>*so*</b>\n$x$")
    assert shown == (
        '<span class="tentative"> &#60;b&#62;&#42;so&#42;&#60;&#47;b&#62; <span>&#36;</span>x<span>&#36;</span></span>'
    )
    assert dimmed_after("It is", "") == ""
    assert dimmed_after("It is", " \n ") == ""


@pytest.mark.parametrize(
    "text", ["```py\nx = 1", "~~~\n", "a\n\n    code", "- a\n\tb", "- a\n    ```\nb", "1. ```\n   x", "so \\"]
)
def test_it_is_not_shown_where_its_dress_would_be_text(text: str) -> None:
    """Within code, or what the browser's parser may take for code, and behind a backslash."""
    assert dimmed_after(text, "more") == ""
    assert dimmed_after("so", "more")


def test_after_code_it_is_shown_again() -> None:
    assert dimmed_after("```\nx\n```\nand", " more")
