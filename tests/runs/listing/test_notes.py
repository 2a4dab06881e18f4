"""Notes as Markdown: structure and emphasis are shown, everything else stays text."""

from __future__ import annotations

import re

import pytest

from toolkit.telemetry.runs.listing.notes import notes_markdown

HOSTILE = (
    "![x](https://evil.example/x.png)",
    "<img src=x onerror=alert(1)>",
    ":red[boo] :material/home: :smile:",
    "[click](javascript:alert(1))",
    "$\\frac{1}{2}$ **bold** `code` # head",
    "](https://evil.example) ]] [[",
    "a\n\n# heading\n\n- ![y](https://evil.example/y.png)\n\n<script>alert(1)</script>",
    "`\n\n![z](https://evil.example/z.png)\n\n`",
    "\u202egnp.exe \x00 \x1b[31m \ud83d",
)

_ESCAPED = re.compile(r"\\[!-/:-@\[-`{-~]")
_LIVE = re.compile(r"!\[|\]\(|\]\[|<\w|:\w+\[|:\w+:|\$|://|(?<![\w\u2060])@\w|www\.", re.IGNORECASE)


def test_headings_lists_quotes_code_bold_and_italic_are_markdown():
    shown = notes_markdown(
        "# Plan\nuse **lr 1e-4** and *not* `r=64`\n\n- one\n  - two\n1. first\n> said\n---\n- [x] done\n- [ ] open"
    )

    lines = [line for line in shown.split("\n") if line]
    assert lines == [
        "**Plan**",
        "use **lr 1e\\-4** and *not* `r=64`  ",
        "- one",
        "  - two",
        "1. first",
        "> said",
        "---",
        "- ☑ done",
        "- ☐ open",
    ]


def test_a_block_of_code_is_kept_as_it_is_and_ends():
    shown = notes_markdown("```python\nx = '![a](http://b)'\n````x\n```\nafter <b>")

    assert shown == "`````text\nx = '![a](http://b)'\n````x\n`````\nafter \\<b\\>  "
    assert notes_markdown("```\nopen") == "````text\nopen\n````"
    assert notes_markdown("~~~\n  ````\n~~~\n").startswith("`````text\n  ````\n`````\n")


@pytest.mark.parametrize(
    "text",
    [
        *HOSTILE,
        "![x](https://evil.example/a.png)",
        "[click](javascript:alert(1))",
        "<img src=x onerror=alert(1)>",
        "**![x](https://evil.example)**",
        "*<b>* :red[boo] $x$ :material/home: https://evil.example www.evil.example a@evil.example",
        "- ![x](y)\n> <script>\n# [a](b)\n1. $y$",
        "[a]: https://evil.example\n[a]",
        "    <b>indented</b>",
        "snake_case_name and 2 * 3 * 4",
        "`a ` ![x](y) ` b`",
    ],
)
def test_nothing_else_is_more_than_text(text):
    shown = notes_markdown(text.encode("utf-8", "replace").decode())

    without_code = re.sub(r"(`{3,})text\n.*?\n\1|`[^`\n]*`", "", _ESCAPED.sub("", shown), flags=re.DOTALL)
    assert not _LIVE.search(without_code), without_code
