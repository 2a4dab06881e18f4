"""Notes in a part of Markdown that is safe to show: text, structure and emphasis, but no link, image or HTML."""

from __future__ import annotations

import re
from typing import Final

from toolkit.telemetry.runs.formatting import clean, md

_MAX_LINE: Final = 5_000
_HEADING: Final = re.compile(r"#{1,6}\s+(\S.*)")
_ITEM: Final = re.compile(r"(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)")
_TASK: Final = re.compile(r"\[([ xX])\]\s+(.*)")
_QUOTE: Final = re.compile(r"\s{0,3}>\s?(.*)")
_FENCE: Final = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_RULE: Final = re.compile(r"\s{0,3}(?:-\s*){3,}|\s{0,3}(?:\*\s*){3,}")
_INLINE: Final = re.compile(
    r"(?P<code>`[^`]+`)|(?P<bold>\*\*(?=\S)[^*]+(?<=\S)\*\*)|(?P<italic>(?<!\w)[*_](?=\S)[^*_]+(?<=\S)[*_](?!\w))"
)
_NOT_IN_CODE: Final = str.maketrans({"`": "'", "\n": " "})


def notes_markdown(text: str) -> str:
    """Return `text` for st.markdown: every character that is not one of these marks is escaped.

    Headings, lists, quotes, rules, code, bold and italic. A link stays as it was written.
    """
    text = clean(text)
    # Longer than any in the text, so that no line of it ends a block that we write.
    ours = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    shown: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if fence:
            is_end = found is not None and found[1].startswith(fence) and not line.strip().strip(fence[0])
            shown.append(ours if is_end else line[:_MAX_LINE])
            fence = "" if is_end else fence
        elif found is not None:
            fence = found[1]
            shown.append(f"{ours}text")
        else:
            shown.append(_line(line[:_MAX_LINE]))
    if fence:
        shown.append(ours)
    return "\n".join(shown)


def _line(line: str) -> str:
    if not line.strip():
        return ""
    if _RULE.fullmatch(line):
        return "\n---\n"
    if found := _HEADING.match(line):
        # In bold: real headings would be mixed up with those of the page.
        return f"\n**{md(found[1], _MAX_LINE)}**\n"
    if found := _ITEM.match(line):
        indent = "  " * min(6, len(found[1].expandtabs(4)) // 2)
        mark = "-" if found[2] is None else f"{found[2]}."
        return f"{indent if found[2] is None else indent * 2}{mark} {_task(found[3])}"
    if found := _QUOTE.match(line):
        return f"> {_inline(found[1])}"
    # Two spaces keep the line break that was typed.
    return f"{_inline(line)}  "


def _task(text: str) -> str:
    found = _TASK.match(text)
    return _inline(text) if found is None else f"{'☐' if found[1] == ' ' else '☑'} {_inline(found[2])}"


def _inline(text: str) -> str:
    shown, end = [], 0
    for found in _INLINE.finditer(text):
        shown.append(_escaped(text[end : found.start()]))
        whole = found[0]
        if found["code"]:
            shown.append(f"`{whole[1:-1].translate(_NOT_IN_CODE)}`")
        elif found["bold"]:
            shown.append(f"**{md(whole[2:-2], _MAX_LINE)}**")
        else:
            shown.append(f"*{md(whole[1:-1], _MAX_LINE)}*")
        end = found.end()
    shown.append(_escaped(text[end:]))
    return "".join(shown)


def _escaped(text: str) -> str:
    """Return `text` escaped, with the spaces at its ends, which `md` drops."""
    body = md(text, _MAX_LINE)
    if not body:
        return " " if text else ""
    return f"{' ' if text[0].isspace() else ''}{body}{' ' if text[-1].isspace() else ''}"
