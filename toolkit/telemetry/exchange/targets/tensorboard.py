"""A run as TensorBoard event files, written by the mirror that also writes them during a training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from toolkit.telemetry.exchange.exported_run import ExportedRun
from toolkit.telemetry.mirrors.shared.scalars import scalars_of
from toolkit.telemetry.mirrors.tensorboard.exporter import TensorBoardExporter
from toolkit.telemetry.runfolder.layout import safe_run_name

LOSES: Final = (
    "values are 32-bit floats in TensorBoard; a point without a step gets the last one, and points of one step within "
    "a millisecond share a time; the end of a run, spans and findings are not exported"
)
_RECORDS: Final = 1_000


def write(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write one folder of event files for each run, `out` itself if there is only one; return the points."""
    points = 0
    names: set[str] = set()
    for number, run in enumerate(runs):
        name = safe_run_name(run.label)
        names.add(name := name if name not in names else f"{name}-{number + 1}")
        folder = out if len(runs) == 1 else out / name
        exporter = TensorBoardExporter(folder, run_folder=run.folder)
        try:
            records = (run.for_tools(record) for record in run.records())
            while batch := list(islice(records, _RECORDS)):
                points += sum(len(scalars_of(record)) for record in batch)
                exporter.write(batch)
        finally:
            exporter.close()
    return points
