"""Reads the records of a run folder strictly, as a parser that knows nothing but JSON would."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.field_types import wrong_types
from toolkit.telemetry.runfolder.records import ENVELOPE

Record = dict[str, Any]


def without_padding(table: Path) -> bytes:
    """Return a table without the zeros that keep a number of a row that is being written whole."""
    return re.sub(rb"(\.[0-9]+?)0+(?=[,\n])", rb"\1", table.read_bytes())


def state_of(record: Record) -> Record:
    """Return what a state record says of the state, whenever it was written."""
    return {name: value for name, value in record.items() if name not in (*ENVELOPE, "at", "checkpoint")}


def read_records(
    path: Path,
    event: str | None = None,
    *,
    bad_lines: int = 0,
    of_any_type: bool = False,
    live: bool = False,
) -> list[Record]:
    """Return the records of a file or of a run folder, only those of one kind if asked.

    Every line is whole and strict JSON, except `bad_lines` of them; each field has its one type, unless `of_any_type`.
    With `live` the file is being written: it may not be there yet, and its last line may be half there.
    """
    if path.is_dir():
        path = path / "metrics.jsonl"
    if live and not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    last = lines.pop()
    assert live or last == b"", f"{path.name} ends in half a line: {last[-80:]!r}"
    records, bad = [], []
    for line in lines:
        try:
            records.append(json.loads(line.decode("utf-8"), parse_constant=_refuse))
        except ValueError:
            bad.append(line)
    bad = [line for line in bad if line]
    assert len(bad) == bad_lines, f"lines that are no record: {bad[:3]}"
    assert of_any_type or wrong_types(records) == []
    return with_event(records, event)


def with_event(records: list[Record], event: str | None) -> list[Record]:
    """Return the records of one kind; all of them if that is None."""
    return [record for record in records if event in (None, record["event"])]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
