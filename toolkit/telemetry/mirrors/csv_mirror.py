"""The sink that writes metrics.csv."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.reader import offset_after
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.safefile import identity_of, open_to_write, write_all
from toolkit.telemetry.runfolder.table.columns import MAX_COLUMNS, Columns
from toolkit.telemetry.runfolder.table.csv_table import BuiltTable, build_table, row_at

_ROWS_AT_ONCE: Final = 32
"""Rows made before the training thread gets the interpreter: less than a millisecond, even with cold caches."""
_PAUSE_S: Final = 0.0005
_QUICK_S: Final = 0.02
"""Building the table again is not deferred while it takes no more processor time than this."""


class CsvMirror:
    """Keeps the run's table up to date with its records.

    What cannot be appended has the table built from the records again: a new column, a file that was removed or edited,
    an earlier session's. A large table is built only now and then, and lacks its newest rows until then.
    """

    name = "metrics.csv"
    only_reads = True
    """It never changes a record, so that it can share them with other mirrors."""

    def __init__(self, folder: Path, *, mode: int, form: str) -> None:
        self._records = folder / METRICS_JSONL
        self._path = folder / METRICS_CSV
        self._form = form
        self._mode = mode
        self._table = BuiltTable(columns=Columns(form))
        self._lacks_rows = True
        self._next_build = 0.0

    def start_at(self) -> int:
        """Build the table of earlier sessions; return the offset in the record file after its newest row."""
        if not os.path.lexists(self._records):
            return 0
        self._build()
        return offset_after(self._records, self._table.last_seq)

    @property
    def leaves_out(self) -> str:
        """What the table has no room for."""
        if not self._table.columns.left_out:
            return ""
        return f"{METRICS_CSV} has its limit of {MAX_COLUMNS:,} columns; further metrics are in {METRICS_JSONL} alone"

    def write(self, batch: Sequence[Record]) -> None:
        """Add a row for each record, which is in the record file already."""
        if not (self._lacks_rows or self._append(batch)):
            self._lacks_rows = True
        if self._lacks_rows and time.monotonic() >= self._next_build:
            self._build()

    def close(self) -> None:
        """Add the rows that the table still lacks, however large it is."""
        if self._lacks_rows and os.path.lexists(self._records):
            self._build()

    def _build(self) -> None:
        # Processor time, which is what a training notices: while one is busy, the clock says little of the work.
        began = time.thread_time()
        self._table = build_table(
            self._records, self._path, mode=self._mode, form=self._form, pause_s=_PAUSE_S
        )
        took = time.thread_time() - began
        self._next_build = time.monotonic() + (20.0 * took if took > _QUICK_S else 0.0)
        self._lacks_rows = False

    def _append(self, batch: Sequence[Record]) -> bool:
        """Append the rows of `batch` by one write; return False if the table has to be built again for them."""
        table, rows = self._table, list[bytes]()
        size, newest = table.size, table.last_seq
        for count, record in enumerate(batch, 1):
            seq = record.get("seq")
            # What another program put between our records has no number, or an old one.
            if type(seq) is int and seq > newest and table.columns.has_row(record):
                row = None if table.columns.add_new_of(record) else row_at(size, table.columns.row(record))
                if row is None:
                    return False
                rows.append(row)
                size, newest = size + len(row), seq
            if not count % _ROWS_AT_ONCE:
                time.sleep(_PAUSE_S)
        try:
            descriptor = open_to_write(self._path, os.O_WRONLY | os.O_APPEND, known=table.identity)
        except OSError:
            return False
        try:
            status = os.fstat(descriptor)
            if identity_of(status) != table.identity or status.st_size != table.size:
                return False
            try:
                write_all(descriptor, b"".join(rows))
            except OSError:
                # Half a row would read as a smaller number: remove what did not fit.
                os.ftruncate(descriptor, table.size)
                raise
        finally:
            os.close(descriptor)
        table.size, table.last_seq = size, newest
        return True
