"""The sink behind metrics.csv."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from toolkit.runfolder.csv_table import CsvTable
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.runfolder.reader import last_record, offset_behind
from toolkit.runfolder.records import Record
from toolkit.runfolder.repair import build_table


class CsvMirror:
    """Keeps the run's table up to date with its records."""

    name = "metrics.csv"

    def __init__(self, folder: Path, *, mode: int) -> None:
        self._records = folder / METRICS_JSONL
        self._table = CsvTable(folder / METRICS_CSV, mode=mode)
        self._mode = mode
        self._written_upto = -1
        """The newest `seq` that was a row when we last wrote."""

    def start_at(self) -> int:
        """Go on with the table an earlier session left; return where in the record file its newest row ends."""
        if not os.path.lexists(self._records):
            return 0
        newest = last_record(self._records)
        # A power cut may have taken records whose rows survived it; their numbers are not to hide the next ones.
        if not self._table.adopt() or self._table.last_seq > (newest["seq"] if newest else -1):
            self._build_again()
        self._written_upto = self._table.last_seq
        return offset_behind(self._records, self._table.last_seq)

    def write(self, batch: Sequence[Record]) -> None:
        """Add a row for each record."""
        is_reset = self._table.last_seq < self._written_upto
        if is_reset or not self._table.is_intact():
            # Somebody removed or edited the table. It is only a mirror: the records say what belongs into it.
            self._build_again()
        self._table.append(batch)
        self._written_upto = self._table.last_seq

    def close(self) -> None:
        """Write what is held and let go of the file."""
        self._table.settle()
        self._table.close()

    def _build_again(self) -> None:
        build_table(self._records, self._table.path, mode=self._mode)
        self._table.adopt()
        self._written_upto = self._table.last_seq
