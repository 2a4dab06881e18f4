"""Trackio: its database, one a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.databases import DatabaseSource, runs_of_databases
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.formats.trackio_rows import FORMAT, add_row, add_system_row
from toolkit.telemetry.importers.framing import sqlite_view
from toolkit.telemetry.importers.framing.sqlite_view import Database
from toolkit.telemetry.importers.json_text import parsed
from toolkit.telemetry.importers.source import MAX_RUNS, Builder, SourceInfo, run_info
from toolkit.telemetry.importers.times import from_any

_TABLES: Final = ("metrics", "configs", "system_metrics", "alerts")
_MEDIA: Final = "media"


class TrackioSource(DatabaseSource):
    """One run of a project."""

    tables = _TABLES

    def __init__(self, info: SourceInfo, path: str, *, has_ids: bool) -> None:
        super().__init__(info, path)
        self._key = "run_id" if has_ids else "run_name"

    def take(self, database: Database, state: dict[str, Any], most: int, out: Builder) -> None:
        """Add new rows."""
        run = self.info.run_id
        folder = Path(self._path).parent.as_posix()
        media = _MEDIA if folder == "." else f"{folder}/{_MEDIA}"
        query = f"SELECT id, step, timestamp, metrics FROM metrics WHERE {self._key} = ? AND id > ? ORDER BY id LIMIT ?"
        for step, timestamp, metrics in self.new_rows(database, query, (run,), state, most):
            values = parsed(metrics)
            if values is None:
                out.pass_over("rows that are no JSON")
            else:
                add_row(values, step, from_any(timestamp), state, media, out)
        if database.has("system_metrics", "id", "timestamp", "metrics", self._key):
            query = (
                f"SELECT id, timestamp, metrics FROM system_metrics WHERE {self._key} = ? AND id > ? "
                "ORDER BY id LIMIT ?"
            )
            for row, timestamp, metrics in database.rows(query, (run, state.get("system", 0), most)):
                state["system"] = row
                add_system_row(parsed(metrics) or {}, from_any(timestamp), out)
        if database.has("configs", "config", self._key):
            for (config,) in database.rows(
                f"SELECT config FROM configs WHERE {self._key} = ? LIMIT 1", (run,)
            ):
                self.info.keep((parsed(config) or {}).items())
        if database.has("alerts", "id", self._key):
            alerts = database.one(f"SELECT count(*) FROM alerts WHERE {self._key} = ?", (run,))
            new = alerts - state.get("alerts", 0)
            state["alerts"] = alerts
            if new > 0:
                out.not_number("alerts (of the tool)", new)

    def is_same(self, database: Database, state: dict[str, Any]) -> bool:
        """Return whether as many rows are there as were read."""
        query = f"SELECT count(*) FROM metrics WHERE {self._key} = ? AND id <= ?"
        return bool(database.one(query, (self.info.run_id, state.get("row", 0))) == state["count"])


def sources_in(folder: Folder) -> Found:
    """Return the runs of each Trackio database in a folder."""
    return runs_of_databases(folder, (".db",), runs_in, skipped=frozenset({_MEDIA}))


def sources_of_file(path: Path, head: bytes) -> list[TrackioSource]:
    """Return the runs of one database that was named."""
    return runs_in(path.parent, path.name) if sqlite_view.is_database(head) else []


def runs_in(root: Path, relative: str) -> list[TrackioSource]:
    """Return the runs in a database; none if it is not Trackio's."""
    found = []
    project = Path(relative).stem
    try:
        with sqlite_view.opened(root / relative, _TABLES) as database:
            if not database.has("metrics", "id", "timestamp", "run_name", "step", "metrics"):
                return []
            has_ids = database.has("metrics", "run_id")
            key = "run_id" if has_ids else "run_name"
            query = "SELECT {key}, run_name FROM {table} GROUP BY {key} ORDER BY min(id) LIMIT ?"
            runs: dict[Any, Any] = {}
            for table in ("metrics", "system_metrics"):
                if database.has(table, "id", "run_name", key):
                    rows = database.rows(query.format(key=key, table=table), (MAX_RUNS - len(runs),))
                    runs |= {run: name for run, name in rows if run not in runs}
            for run, name in runs.items():
                info = run_info(FORMAT, f"{project}/{run}", str(name), root, [f"{relative}/{run}"])
                info.run_id, info.group = str(run), project
                found.append(TrackioSource(info, relative, has_ids=has_ids))
    except OSError:
        return found
    return found
