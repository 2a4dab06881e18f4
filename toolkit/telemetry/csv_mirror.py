"""The sink behind metrics.csv."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.runfolder.csv_table import CsvTable
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.runfolder.reader import offset_behind
from toolkit.runfolder.repair import build_table
from toolkit.telemetry.sink import Record


class CsvMirror:
    """Keeps the run's table up to date with its records."""

    name = "metrics.csv"

    def __init__(self, folder: Path, *, mode: int) -> None:
        self._records = folder / METRICS_JSONL
        self._table = CsvTable(folder / METRICS_CSV, mode=mode)
        self._mode = mode

    def start_at(self) -> int:
        """Go on with the table an earlier session left; return where in the record file its newest row ends."""
        if not os.path.lexists(self._records):
            return 0
        if not self._table.adopt():
            build_table(self._records, self._table.path, mode=self._mode)
            self._table.adopt()
        return offset_behind(self._records, self._table.last_seq)

    def write(self, batch: Sequence[Record]) -> None:
        """Add a row for each record."""
        if not self._table.is_intact():
            # Somebody removed or edited the table. It is only a mirror: the records say what belongs into it.
            build_table(self._records, self._table.path, mode=self._mode)
            self._table.adopt()
        self._table.append([dict(record) for record in batch])

    def close(self) -> None:
        """Write what is held and let go of the file."""
        self._table.settle()
        self._table.close()
