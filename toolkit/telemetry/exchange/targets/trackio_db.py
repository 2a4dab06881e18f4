"""A run as a Trackio database, one for each project; Trackio itself is not needed, and upgrades it when it opens it."""

from __future__ import annotations

import datetime
import json
import math
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.exchange.exported_run import ExportedRun
from toolkit.telemetry.runfolder.codec import name_of_non_finite
from toolkit.telemetry.runfolder.records import SYSTEM

LOSES: Final = (
    "points of one step within a millisecond share a time; ends, images, texts and spans are not exported"
)

_TABLES: Final = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
  run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT);
CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
  config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
CREATE TABLE system_metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
  run_name TEXT NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT);
CREATE INDEX idx_metrics_run_step ON metrics(run_id, step);
"""


def write(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write `<project>.db` into `out`; return the points."""
    out.mkdir(0o700, parents=True)
    points = 0
    databases: dict[str, list[ExportedRun]] = {}
    for run in runs:
        databases.setdefault(_project(run.project), []).append(run)
    for project, members in databases.items():
        path = out / f"{project}.db"
        path.touch(0o600)
        with closing(sqlite3.connect(path)) as database, database:
            database.executescript(_TABLES)
            for run in members:
                points += _write_run(database, run, run.label)
    return points


def _write_run(database: sqlite3.Connection, run: ExportedRun, name: str) -> int:
    points = step = 0
    started = run.started if math.isfinite(run.started) else 0.0
    config = {**run.config, "_Created": _iso_time(started)}
    database.execute(
        "INSERT INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?)",
        (run.run_id, name, json.dumps(config, default=str), _iso_time(started)),
    )
    for _, event, own_step, timestamp, values in run.scalars():
        step = step if own_step is None else own_step
        at = _iso_time(started if timestamp is None else timestamp)
        points += len(values)
        text = json.dumps({key: _plain(value) for key, value in values.items()}, allow_nan=False)
        if event == SYSTEM and own_step is None:
            database.execute(
                "INSERT INTO system_metrics (run_id, timestamp, run_name, metrics) VALUES (?, ?, ?, ?)",
                (run.run_id, at, name, text),
            )
        else:
            database.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)",
                (run.run_id, at, name, step, text),
            )
    return points


def _plain(value: float) -> Any:
    """Return a number as Trackio writes it: words for those that JSON lacks."""
    return value if math.isfinite(value) else name_of_non_finite(value)


def _iso_time(timestamp: float) -> str:
    return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc).isoformat()


def _project(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100] or "runs"
