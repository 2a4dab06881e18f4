"""The sink that writes metrics.csv."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from toolkit.telemetry.runfolder.journal.repair import build_table
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.reader import BadLine, Cursor, offset_after, parse_line, read_block
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.table.columns import MAX_COLUMNS
from toolkit.telemetry.runfolder.table.csv_table import SHORT, Adopted, CsvTable, ForeignTableError
from toolkit.telemetry.runfolder.table.short_columns import WITHOUT_ROWS

_COUNTED_BYTES = 1024 * 1024
_AT_ONCE = 32
"""Rows written before the training thread gets the interpreter: less than a millisecond, even with cold caches."""
_BREATH_S = 0.0005
_WITHOUT_ROWS = re.compile(
    b'^\\{"event":"(?:%b)"' % b"|".join(event.encode() for event in sorted(WITHOUT_ROWS)), re.MULTILINE
)
"""Matches lines of records that have no row in the short table."""


class CsvMirror:
    """Keeps the run's table up to date with its records."""

    name = "metrics.csv"
    only_reads = True
    """It never changes a record, so that it can share them with other mirrors."""

    def __init__(self, folder: Path, *, mode: int, form: str) -> None:
        self._records = folder / METRICS_JSONL
        self._form = form
        self._table = CsvTable(folder / METRICS_CSV, mode=mode, form=form)
        self._mode = mode
        self._written_upto = -1
        """The newest `seq` that was a row when we last wrote."""

    def start_at(self) -> int:
        """Continue the table of an earlier session; return the offset in the record file after its newest row."""
        if not os.path.lexists(self._records):
            return 0
        found = self._table.adopt()
        if found is None and not os.path.lexists(self._table.path):
            # There is none yet: its rows are appended one batch after the other, which takes a third of the time.
            return 0
        if found is None or not self._are_all_of_records(found):
            self._build_again()
        self._written_upto = self._table.last_seq
        return offset_after(self._records, self._table.last_seq)

    @property
    def leaves_out(self) -> str:
        """What the table has no room for."""
        if not self._table.columns_left_out:
            return ""
        return f"{METRICS_CSV} has its limit of {MAX_COLUMNS:,} columns; further metrics are in {METRICS_JSONL} alone"

    def write(self, batch: Sequence[Record]) -> None:
        """Add a row for each record."""
        self._rebuild_if_edited()
        for first in range(0, len(batch), _AT_ONCE):
            if first:
                # Give the GIL to the training thread; this is not urgent.
                time.sleep(_BREATH_S)
            try:
                self._table.append(batch[first : first + _AT_ONCE])
            except ForeignTableError:
                # It was edited before this session adopted it. The new rows are in the records already.
                self._build_again()
            self._written_upto = self._table.last_seq

    def _rebuild_if_edited(self) -> None:
        is_reset = self._table.last_seq < self._written_upto
        if is_reset or not self._table.is_intact():
            # The table was removed or edited. It is rebuilt from the records.
            self._build_again()

    def close(self) -> None:
        """Flush and close the file."""
        self._table.settle()
        self._table.close()

    def _are_all_of_records(self, found: Adopted) -> bool:
        """Return whether the rows found are exactly those of the records up to the newest row.

        A power cut may destroy records whose rows survive: the record file is truncated and sequence numbers are
        reused, or it contains zeros. Counting lines detects that without parsing; if some line is not a record, the
        table is rebuilt needlessly.
        """
        newest_at = offset_after(self._records, found.last_seq - 1)
        end = offset_after(self._records, found.last_seq)
        if found.rows:
            line = read_block(self._records, newest_at, max_bytes=end - newest_at).data[: end - newest_at]
            newest = parse_line(newest_at, line.rstrip(b"\n").rpartition(b"\n")[2])
            if isinstance(newest, BadLine) or newest.get("seq") != found.last_seq:
                return False
            if str(newest.get("session", "")) != found.last_session:
                return False
        without_rows = _WITHOUT_ROWS if self._form == SHORT else None
        return _count_lines(self._records, end, without_rows) == found.rows

    def _build_again(self) -> None:
        build_table(self._records, self._table.path, mode=self._mode, form=self._form)
        self._table.adopt()
        self._written_upto = self._table.last_seq


def _count_lines(record_file: Path, end: int, without: re.Pattern[bytes] | None) -> int | None:
    """Return how many lines begin before byte `end`, without those that match `without`; None if there are zeros."""
    lines, cursor = 0, Cursor()
    while cursor.offset < end:
        block = read_block(record_file, cursor, max_bytes=_COUNTED_BYTES)
        data = block.data[: end - block.start]
        if not data or block.long_line is not None or b"\0" in data:
            return None
        lines += data.count(b"\n")
        if without is not None:
            lines -= sum(1 for _ in without.finditer(data))
        cursor = block.cursor
        # Give the GIL to the training thread; this is not urgent.
        time.sleep(_BREATH_S)
    return lines
