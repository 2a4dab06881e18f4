"""ai-toolkit: `loss_log.db`, which its page reads."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.databases import DatabaseSource
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.framing import sqlite_view
from toolkit.telemetry.importers.framing.sqlite_view import Database
from toolkit.telemetry.importers.source import MAX_TEXT_CHARS, Builder, Event, as_step, run_info

FORMAT: Final = "ai-toolkit"
_TABLES: Final = ("steps", "metric_keys", "metrics")


class AiToolkitSource(DatabaseSource):
    """One database, one run. A resume deletes the rows after its checkpoint."""

    tables = _TABLES

    def take(self, database: Database, state: dict[str, Any], most: int, out: Builder) -> None:
        """Add new rows; SQLite has no NaN, so a row with neither a number nor a text is one."""
        query = (
            "SELECT m.rowid, m.step, m.key, m.value_real, m.value_text, s.wall_time FROM metrics AS m "
            "LEFT JOIN steps AS s ON s.step = m.step WHERE m.rowid > ? ORDER BY m.rowid LIMIT ?"
        )
        for step, key, value, words, timestamp in self.new_rows(database, query, (), state, most):
            state["at"] = [step, str(key), repr(value), repr(timestamp)]
            time = float(timestamp) if type(timestamp) in (int, float) else math.nan
            name = str(key)
            if type(value) in (int, float):
                out.add(name, step, time, float(value))
            elif words is None and value is None:
                out.add(name, step, time, math.nan)
            else:
                out.not_number(name)
                text = str(words)[:MAX_TEXT_CHARS]
                out.event(Event(kind="text", name=name, step=as_step(step), time=time, payload=text))

    def is_same(self, database: Database, state: dict[str, Any]) -> bool:
        """Return whether as many rows are there as were read, and the last is the same."""
        row, count = state.get("row", 0), state["count"]
        if database.one("SELECT count(*) FROM metrics WHERE rowid <= ?", (row,)) != count:
            return False
        if not row:
            return True
        query = (
            "SELECT m.step, m.key, m.value_real, s.wall_time FROM metrics AS m "
            "LEFT JOIN steps AS s ON s.step = m.step WHERE m.rowid = ?"
        )
        for step, key, value, timestamp in database.rows(query, (row,)):
            return bool([step, str(key), repr(value), repr(timestamp)] == state["at"])
        return False


def sources_in(folder: Folder) -> Found:
    """Return the run of `loss_log.db`, if the folder has one."""
    if "loss_log.db" not in folder.files:
        return Found()
    source = _source(folder.root, folder.below("loss_log.db"), folder.head("loss_log.db"))
    return Found([source] if source else [], frozenset({"loss_log.db"}) if source else frozenset())


def source_of_file(path: Path, head: bytes) -> AiToolkitSource | None:
    """Return the run of one database that was named."""
    return _source(path.parent, path.name, head)


def _source(root: Path, relative: str, head: bytes) -> AiToolkitSource | None:
    if not sqlite_view.is_database(head):
        return None
    path = root / relative
    folder = Path(relative).parent.as_posix()
    info = run_info(FORMAT, os.path.realpath(path), path.parent.name, root, [folder])
    try:
        with sqlite_view.opened(path, _TABLES) as database:
            is_it = database.has("steps", "step", "wall_time") and database.has(
                "metrics", "step", "key", "value_real", "value_text"
            )
    except OSError as error:
        if path.name != "loss_log.db":
            return None
        info.note(str(error))
        is_it = True
    return AiToolkitSource(info, relative) if is_it else None
