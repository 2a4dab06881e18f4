"""A document as Markdown, to paste into a chat or an issue: verdict first, tables, no pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from toolkit.telemetry.reports.document import (
    Bars,
    Block,
    Bullets,
    Card,
    Document,
    Facts,
    Section,
    Table,
    Text,
)
from toolkit.telemetry.runs.formatting import clean, cut

_MAX_TEXT: Final = 2_000
_MAX_ROWS: Final = 40
_MAX_COLUMNS: Final = 12
_JOINER: Final = "\N{WORD JOINER}"
_SPECIAL: Final = re.compile(r"[\\`*\[\]<>|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ACTIVE: Final = re.compile(r":(?=//)|@(?=\w)|(?<=\bwww)(?=\.)")
_AT_START: Final = re.compile(r"^(\d+(?=[.)] )|[#+=-])")


def to_markdown(document: Document) -> str:
    """Return the document as Markdown."""
    about = " · ".join(text_md(text) for text in document.about)
    head = [f"### {text_md(document.title)}", f"**{text_md(document.verdict, _MAX_TEXT)}**"]
    blocks = [*head, *([about] if about else [])]
    for section in document.sections:
        blocks += _section(section)
    if document.made:
        blocks.append(f"_{text_md(document.made, _MAX_TEXT)}_")
    return "\n\n".join(blocks) + "\n"


def text_md(text: str, limit: int = 200, *, at_start: bool = False) -> str:
    """Return untrusted text as one line that shows itself: no link, mention, image, formatting or HTML.

    `at_start` if it begins a line, where a number or a dash may start a list.
    """
    line = cut(" ".join(clean(text).split()), limit)
    line = _ACTIVE.sub(rf"\g<0>{_JOINER}", _SPECIAL.sub(r"\\\g<0>", line))
    if not at_start:
        return line
    return _AT_START.sub(lambda at: at[0] + _JOINER if at[0].isdecimal() else f"\\{at[0]}", line)


def _section(section: Section) -> list[str]:
    blocks = [text for block in section.blocks if (text := _block(block))]
    heading = [f"#### {text_md(section.title)}"] if section.title else []
    return [*heading, *blocks] if blocks else []


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return text_md(block.text, _MAX_TEXT, at_start=True)
    if isinstance(block, Facts):
        rows = [[fact.label, fact.value + (f" ({fact.about})" if fact.about else "")] for fact in block.items]
        return table_md(["", "value"], rows)
    if isinstance(block, Table):
        return _block_of_table(block)
    if isinstance(block, Bars):
        return table_md(block.head, [[item.label, item.value, item.about] for item in block.items])
    if isinstance(block, Card):
        inner = [text for part in block.blocks if (text := _block(part))]
        return "\n\n".join(
            [f"**{block.tone.upper()}: {text_md(block.title)}**, {text_md(block.when)}", *inner]
        )
    if isinstance(block, Bullets):
        return "\n".join(
            [f"{text_md(block.title)}:", "", *(f"- {text_md(item, _MAX_TEXT)}" for item in block.items)]
        )
    # Charts and pictures: the figures are in the tables.
    return ""


def _block_of_table(table: Table) -> str:
    rows = [
        [
            f"**{text_md(cell)}** ★" if (number, place) in table.best else text_md(cell)
            for place, cell in enumerate(row[:_MAX_COLUMNS])
        ]
        for number, row in enumerate(table.rows[:_MAX_ROWS])
    ]
    found = _lines([text_md(name, 60) for name in table.head[:_MAX_COLUMNS]], rows)
    notes = [table.left_out] if table.left_out else []
    if len(table.rows) > _MAX_ROWS:
        notes.append(f"{len(table.rows) - _MAX_ROWS:,} more rows are in the HTML report.")
    if len(table.head) > _MAX_COLUMNS:
        notes.append(f"{len(table.head) - _MAX_COLUMNS:,} more columns are in the HTML report.")
    title = [f"{text_md(table.title)}:"] if table.title else []
    return "\n\n".join([*title, found, *(text_md(note, _MAX_TEXT) for note in notes)])


def table_md(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of untrusted texts."""
    return _lines([text_md(name) for name in head], [[text_md(cell) for cell in row] for row in rows])


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, marks, *rows])
