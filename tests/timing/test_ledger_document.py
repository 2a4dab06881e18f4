from __future__ import annotations

from pathlib import Path

from toolkit.telemetry.timing.names import ENTRIES, ENTRY_OF

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spans.md"


def rows():
    section = DOCUMENT.read_text(encoding="utf-8").partition("## The time ledger")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if "|" in line]
    return {row[0].strip(): row[-1] for row in cells[2:]}


def test_the_document_lists_every_entry():
    assert set(rows()) == {entry.replace("_", " ") for entry in ENTRIES}


def test_every_span_is_listed_with_its_entry():
    entries = rows()

    assert {
        name for name, entry in ENTRY_OF.items() if f"`{name}`" not in entries[entry.replace("_", " ")]
    } == set()
