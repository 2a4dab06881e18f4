"""MLflow: its database, in SQLite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.importers.databases import DatabaseSource, runs_of_databases
from toolkit.telemetry.importers.folders import Folder, Found
from toolkit.telemetry.importers.framing import sqlite_view
from toolkit.telemetry.importers.framing.sqlite_view import Database
from toolkit.telemetry.importers.source import MAX_RUNS, Builder, Status, run_info
from toolkit.telemetry.importers.times import from_ms

FORMAT: Final = "mlflow"
_TABLES: Final = ("experiments", "runs", "metrics", "params", "tags")
_ENDINGS: Final = (".db", ".sqlite", ".sqlite3")
_STATES: Final = {
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "failed",
}
_LARGEST: Final = 1.7976931348623157e308


class MlflowDatabaseSource(DatabaseSource):
    """One run of a database."""

    tables = _TABLES

    def take(self, database: Database, state: dict[str, Any], most: int, out: Builder) -> None:
        """Add new rows of metrics, and read status and params again."""
        columns = database.columns("metrics")
        step = "step" if "step" in columns else "0"
        is_nan = "is_nan" if "is_nan" in columns else "0"
        query = (
            f"SELECT rowid, key, value, timestamp, {step}, {is_nan} FROM metrics "
            "WHERE run_uuid = ? AND rowid > ? ORDER BY rowid LIMIT ?"
        )
        rows = self.new_rows(database, query, (self.info.run_id,), state, most)
        for key, value, timestamp, at, nan in rows:
            if nan or type(value) not in (int, float):
                value = math.nan
            elif abs(value) == _LARGEST:
                self.info.note("MLflow stores infinity as the largest number, 1.7976931348623157e308")
            out.add(str(key), at, from_ms(timestamp), float(value))
        self._read_about(database)

    def is_same(self, database: Database, state: dict[str, Any]) -> bool:
        """Return whether as many rows are there as were read."""
        query = "SELECT count(*) FROM metrics WHERE run_uuid = ? AND rowid <= ?"
        return bool(database.one(query, (self.info.run_id, state.get("row", 0))) == state["count"])

    def _read_about(self, database: Database) -> None:
        info, run = self.info, self.info.run_id
        for status, end in database.rows("SELECT status, end_time FROM runs WHERE run_uuid = ?", (run,)):
            known = _STATES.get(str(status))
            if known is not None:
                self._end = Status(known, last_sign=self._last_sign, ended=from_ms(end))
        if database.has("params", "key", "value", "run_uuid"):
            rows = database.rows("SELECT key, value FROM params WHERE run_uuid = ? LIMIT 5000", (run,))
            info.keep(rows)
        if database.has("tags", "key", "value", "run_uuid"):
            info.tags.clear()
            rows = database.rows("SELECT key, value FROM tags WHERE run_uuid = ? LIMIT 1000", (run,))
            for key, value in rows:
                if key == "mlflow.parentRunId":
                    info.parent = str(value)[:100]
                elif not str(key).startswith("mlflow."):
                    info.tags.append(f"{key}={str(value)[:1000]}")


def sources_in(folder: Folder) -> Found:
    """Return the runs of each MLflow database in a folder."""
    return runs_of_databases(folder, _ENDINGS, runs_in)


def runs_in(root: Path, relative: str) -> list[MlflowDatabaseSource]:
    """Return the runs in a database; none if it is not MLflow's."""
    found = []
    try:
        with sqlite_view.opened(root / relative, _TABLES) as database:
            if not (
                database.has("runs", "run_uuid", "experiment_id", "status")
                and database.has("experiments", "experiment_id", "name")
                and database.has("metrics", "key", "value", "timestamp", "run_uuid")
            ):
                return []
            experiments = {
                number: (str(name), stage == "deleted")
                for number, name, stage in database.rows(
                    "SELECT experiment_id, name, lifecycle_stage FROM experiments LIMIT 20000"
                )
            }
            names: dict[str, str] = {}
            if database.has("tags", "key", "value", "run_uuid"):
                names = {
                    str(run): str(value)
                    for run, value in database.rows(
                        "SELECT run_uuid, value FROM tags WHERE key = 'mlflow.runName' LIMIT 20000"
                    )
                }
            query = "SELECT run_uuid, name, experiment_id, lifecycle_stage FROM runs LIMIT ?"
            for run, name, number, stage in database.rows(query, (MAX_RUNS,)):
                group, is_gone = experiments.get(number, ("", False))
                shown = names.get(str(run)) or str(name or run)
                info = run_info(FORMAT, str(run), shown, root, [f"{relative}/{run}"], run_id=str(run))
                info.group, info.deleted = group[:1000], is_gone or stage == "deleted"
                found.append(MlflowDatabaseSource(info, relative))
    except OSError:
        return found
    return found


def sources_of_file(path: Path, head: bytes) -> list[MlflowDatabaseSource]:
    """Return the runs of one database that was named."""
    return runs_in(path.parent, path.name) if sqlite_view.is_database(head) else []
