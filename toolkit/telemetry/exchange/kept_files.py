"""Copies images and tables of another tool's run into a run folder, each once, under a name made of its content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.exchange.record_maker import KeepFile
from toolkit.telemetry.importers.json_text import loaded
from toolkit.telemetry.importers.source import Event, RunSource
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.privacy.masking import mask_table
from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.layout import PRIVATE, SAMPLES, TABLES
from toolkit.telemetry.runfolder.safefile import replace_file
from toolkit.telemetry.runfolder.table.columns import csv_of

_IMAGES: Final = ((b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpg"), (b"GIF8", "gif"), (b"RIFF", "webp"))
_MAX_COLUMNS: Final = 200
_MAX_ROWS: Final = 10_000

Table = tuple[list[str], list[list[Any]]]


def file_keeper(source: RunSource, folder: Path) -> KeepFile:
    """Return a function that keeps the files of events in `folder`."""

    def keep(event: Event) -> dict[str, Any] | None:
        data: Any = event.payload
        if event.blob is not None:
            try:
                data = source.blob(event.blob)
            except OSError:
                return None
        if event.kind == "table":
            table = _table_of(data)
            if table is None:
                return None
            names, rows = table
            path = _put(folder, TABLES, "csv", csv_of(names, rows))
            return {"path": path, "columns": names, "rows": len(rows)}
        for head, ending in _IMAGES if isinstance(data, bytes) else ():
            if data.startswith(head):
                return {"path": _put(folder, SAMPLES, ending, data)}
        return None

    return keep


def _table_of(data: Any) -> Table | None:
    """Return the columns and rows of a list of mappings, or of a table in W&B's JSON."""
    if isinstance(data, bytes):
        data = loaded(data, most=len(data))
    if isinstance(data, dict):
        names, rows = data.get("columns"), data.get("data")
    elif isinstance(data, list) and len(data) <= _MAX_ROWS and all(isinstance(row, dict) for row in data):
        names = list(dict.fromkeys(name for row in data for name in row))
        rows = [[row.get(name) for name in names[: _MAX_COLUMNS + 1]] for row in data]
    else:
        return None
    if not isinstance(names, list) or not isinstance(rows, list) or not names:
        return None
    kept = [row[: len(names)] for row in rows if isinstance(row, list)]
    if len(names) > _MAX_COLUMNS or len(kept) > _MAX_ROWS:
        return None
    columns: dict[str, None] = {}
    for name in names:
        text = str(encodable(plain(name)))
        columns[text if text not in columns else f"{text}_{len(columns)}"] = None
    return mask_table([*columns], [[encodable(plain(cell)) for cell in row] for row in kept])


def _put(folder: Path, below: str, ending: str, data: bytes) -> str:
    path = f"{below}/{hashlib.sha256(data).hexdigest()[:24]}.{ending}"
    if not os.path.lexists(folder / path):
        os.makedirs(folder / below, PRIVATE.folder, exist_ok=True)
        replace_file(folder / path, data, mode=PRIVATE.file)
    return path
