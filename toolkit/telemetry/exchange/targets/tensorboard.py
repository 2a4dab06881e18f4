"""A run as TensorBoard event files, written by the mirror that also writes them during a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.exchange.exported_run import ExportedRun, folder_names, mirror
from toolkit.telemetry.mirrors.tensorboard.exporter import TensorBoardExporter

LOSES: Final = (
    "values are 32-bit floats in TensorBoard; a point without a step gets the last one, and points of one step within "
    "a millisecond share a time; the end of a run, spans and findings are not exported"
)


def write(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write one folder of event files for each run, `out` itself if there is only one; return the points."""
    points = 0
    for name, run in zip(folder_names(runs), runs, strict=True):
        folder = out if len(runs) == 1 else out / name
        exporter = TensorBoardExporter(folder, run_folder=run.folder)
        points += mirror(map(run.for_tools, run.records()), exporter)
    return points
