"""A run as a W&B offline run, written by W&B itself in a process of its own; nothing is sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.exchange.exported_run import ExportedRun, mirror
from toolkit.telemetry.exchange.record_maker import CONFIG
from toolkit.telemetry.mirrors.wandb.exporter import WandbExporter
from toolkit.telemetry.runfolder.records import START, Record

LOSES: Final = (
    "W&B's own step counts rows, and the run's step is `global_step`; points of one step within a millisecond share a "
    "time; every run is finished there; images are not exported"
)


def write(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write an offline run below `out`/wandb for each run; return the points."""
    points = 0
    for run in runs:
        exporter = WandbExporter(
            out, project=run.project, run_name=run.name, run_id=run.run_id, mode="offline"
        )
        started = run.started if run.started == run.started else time.time()
        points += mirror((_complete(run, record, started) for record in run.records()), exporter)
    return points


def _complete(run: ExportedRun, record: Record, started: float) -> Record:
    """Return `record` with a time, which W&B needs; of a run that another tool wrote, with its configuration alone."""
    if run.keeps_names and record.get("event") in (START, CONFIG):
        config = record.get(CONFIG)
        record = {**(config if isinstance(config, dict) else {}), "event": START, "seq": record.get("seq", 0)}
    return {"time": started, **run.for_tools(record)}
