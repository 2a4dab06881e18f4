"""metrics.csv: a run's records as one table that pandas reads at any time.

Rows are appended by single writes of whole rows. A reader that comes during one sees it up to the end of a page of the
file; so a row is laid out that no cell crosses into another page: a number before it gets zeros after its fraction,
which change no value. Such a reader finds the last row without its last cells, and never a part of a number. What
cannot be laid out like that, and every new column, comes with a copy of the file that is renamed over it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL, PRIVATE
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.reader import blocks_of, offset_after, records_in
from toolkit.telemetry.runfolder.records import LOST, Record
from toolkit.telemetry.runfolder.safefile import (
    NO_FILE,
    identity_of,
    new_file,
    open_regular,
    open_to_write,
    rename_over,
    write_all,
)
from toolkit.telemetry.runfolder.table.columns import ALL, MAX_COLUMNS, SHORT, Columns

_PAGE: Final = 4096
_ROOM: Final = 64
"""Bytes that a row leaves free at the end of a page, or none: the next row's event and time fit into them."""
_TAKES_ZEROS: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_READ_BYTES: Final = 16 * 1024
"""Making rows of so many bytes of records takes about a millisecond, for which a training thread may have to wait."""
_ROWS_AT_ONCE: Final = 32
_PAUSE_S: Final = 0.0005
_COPIED_AT_ONCE: Final = 1024 * 1024
_RESTS: Final = 20
"""A table is rewritten for at most a twentieth of the time."""


class _NotAsItWas(Exception):  # noqa: N818 - it never leaves this module
    """The table is missing, or is not as it was left: it has to be built again."""


def table_form(folder: Path, asked: str | None = None) -> str:
    """Return the form of the table of the run in `folder`: what is `asked` for, else what the run said, else short."""
    try:
        said = read_manifest(folder).table
    except (OSError, ManifestError):
        said = None
    return asked or said or SHORT


class CsvTable:
    """The table of a record file: built from it, and kept up to date as the sink of its records."""

    name = METRICS_CSV
    only_reads = True
    """It never changes a record, so that it can share them with other mirrors."""

    def __init__(
        self,
        record_file: Path,
        path: Path,
        *,
        mode: int = PRIVATE.file,
        form: str = ALL,
        is_training: bool = False,
    ) -> None:
        """In a process that `is_training`, it sleeps every few rows, so that the training gets the interpreter."""
        self.rows = 0
        """How many it had when it was built."""
        self.bad_lines = 0
        self.undeclared = 0
        """Sequence numbers that are in no record and in no `lost` record."""
        self.foreign = 0
        """Number of records, if another program wrote all of them."""
        self.rest_until = 0.0
        """A monotonic time: records come before it only if someone waits for them."""
        self._records = record_file
        self._path = path
        self._mode = mode
        self._form = form
        self._pause_s = _PAUSE_S if is_training else 0.0
        self._columns = Columns(form)
        self._newest = -1
        self._width = self._size = 0
        self._identity = NO_FILE

    def start_at(self) -> int:
        """Build the table of earlier sessions; return the offset in the record file after its newest row."""
        if not os.path.lexists(self._records):
            return 0
        self.build()
        return offset_after(self._records, self._newest)

    @property
    def leaves_out(self) -> str:
        """What the table has no room for."""
        limit = f"{METRICS_CSV} has its limit of {MAX_COLUMNS:,} columns"
        more = f"{limit}; further metrics are in {METRICS_JSONL} alone"
        return more if self._columns.left_out else ""

    def write(self, batch: Sequence[Record]) -> None:
        """Add a row for each record, which is in the record file already."""
        try:
            self._add(batch)
        except _NotAsItWas:
            self.build()

    def close(self) -> None:
        """Do nothing: every row is in the file."""

    def build(self) -> None:
        """Write the table from the records alone, in a new file that replaces it.

        Raises:
            OSError: the records cannot be read, or the table not written; the old one is then as it was.
        """
        self._identity, self._columns = NO_FILE, Columns(self._form)
        for records in self._read():
            for record in records:
                self._columns.add_new_of(record)
        self._replace(map(self._plain_rows, self._read(until=self._newest)))

    def _read(self, until: float = math.inf) -> Iterator[list[Record]]:
        """Yield the records that have a row, up to the number `until` and each number once, and count what there is."""
        self.rows = self.bad_lines = self.foreign = declared = numbered = 0
        self._newest = -1
        for block in blocks_of(self._records, max_bytes=_READ_BYTES):
            records, bad_lines = records_in(block)
            self.bad_lines += bad_lines
            found = []
            for record in records:
                seq = record.get("seq")
                if type(seq) is int:
                    if not self._newest < seq <= until:
                        continue
                    self._newest, numbered = seq, numbered + 1
                    # What was logged after the end had no number.
                    if record.get("event") == LOST and "from_seq" in record:
                        declared += record["records"] if type(record.get("records")) is int else 0
                elif numbered:
                    continue
                else:
                    self.foreign += 1
                if self._columns.has_row(record):
                    found.append(record)
            self.rows += len(found)
            yield found
            time.sleep(self._pause_s)
        self.foreign = 0 if numbered else self.foreign
        self.undeclared = max(0, self._newest + 1 - numbered - declared)

    def _plain_rows(self, records: Iterable[Record]) -> bytes:
        return b"".join(_plain_row(self._columns.row(record)) for record in records)

    def _add(self, batch: Sequence[Record]) -> None:
        """Add the rows of `batch`. Raises _NotAsItWas, and whatever the disk does."""
        added, newest, columns = [], self._newest, self._columns
        for record in batch:
            seq = record.get("seq")
            # What another program put between our records has no number, or an old one.
            if type(seq) is int and seq > newest:
                newest = seq
                if columns.has_row(record):
                    columns.add_new_of(record)
                    added.append(record)
        rows, size = [], self._size
        for count, record in enumerate(added, 1):
            row = row_at(size, columns.row(record))
            if row is None:
                break
            rows.append(row)
            size += len(row)
            if not count % _ROWS_AT_ONCE:
                time.sleep(self._pause_s)
        if self._width == len(columns.names) and len(rows) == len(added):
            self._append(b"".join(rows))
        else:
            self._replace(itertools.chain(self._old_rows(), [self._plain_rows(added)]))
        self._newest = newest

    def _append(self, data: bytes) -> None:
        with os.fdopen(self._opened(os.O_WRONLY | os.O_APPEND), "wb", buffering=0) as file:
            try:
                write_all(file.fileno(), data)
            except OSError:
                # Half a row would read as a smaller number: remove what did not fit.
                os.ftruncate(file.fileno(), self._size)
                raise
        self._size += len(data)

    def _old_rows(self) -> Iterator[bytes]:
        """Yield the rows that are there, with an empty cell for each new column."""
        end = b"," * (len(self._columns.names) - self._width) + b"\n"
        with os.fdopen(self._opened(os.O_RDONLY), "rb") as file:
            file.readline()
            while data := file.read(_COPIED_AT_ONCE):
                yield data.replace(b"\n", end)

    def _opened(self, flags: int) -> int:
        """Open the table and return its descriptor. Raises _NotAsItWas."""
        try:
            descriptor = open_to_write(self._path, flags, known=self._identity)
        except OSError as error:
            raise _NotAsItWas from error
        status = os.fstat(descriptor)
        if (identity_of(status), status.st_size) != (self._identity, self._size):
            os.close(descriptor)
            raise _NotAsItWas
        return descriptor

    def _replace(self, rows: Iterable[bytes]) -> None:
        """Put a new file in the table's place, with the header and `rows`."""
        began, size = time.monotonic(), 0
        with new_file(self._path, mode=self._mode, owner_of=self._records) as descriptor:
            for data in itertools.chain([self._columns.header().encode("utf-8", "replace") + b"\n"], rows):
                write_all(descriptor, data)
                size += len(data)
            identity = identity_of(os.fstat(descriptor))
        self._width, self._size, self._identity = len(self._columns.names), size, identity
        now = time.monotonic()
        self.rest_until = now + _RESTS * (now - began)


def build_table(record_file: Path, path: Path, *, form: str = ALL) -> CsvTable:
    """Build the table of `record_file` at `path`, from the records alone; it raises as `CsvTable.build` does."""
    table = CsvTable(record_file, path, form=form)
    table.build()
    return table


def repair_table(record_file: Path, path: Path, *, mode: int, form: str) -> tuple[CsvTable, Path | None]:
    """Build the table again; one with more data is kept, and the second value is its new path.

    That of another program is left alone, and then counts no rows. Raises as `CsvTable.build` does.
    """
    new = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    table = CsvTable(record_file, new, mode=mode, form=form)
    table.build()
    try:
        if table.foreign and os.path.lexists(path):
            os.unlink(new)
            table.rows = 0
            return table, None
        kept = _free_name(path) if _has_more(path, new) else None
        if kept is not None:
            os.rename(path, kept)
        rename_over(new, path)
    except BaseException:
        os.unlink(new)
        raise
    return table, kept


def _has_more(path: Path, new: Path) -> bool:
    """Return whether the table at `path` has more rows or other columns than the `new` one, its successor."""
    try:
        # Zeros add far less: rows that are counted would be those of a file of any size.
        if os.lstat(path).st_size > 2 * os.lstat(new).st_size + 1024**2:
            return True
        (rows, columns), (new_rows, new_columns) = _extent(path), _extent(new)
    except OSError:
        # There is no table, or something else such as a link to a file elsewhere, which is left alone.
        return False
    return rows > 0 and (rows > new_rows or not columns <= new_columns)


def _extent(table: Path) -> tuple[int, set[bytes]]:
    """Return how many rows a table has, and its columns."""
    with open(open_regular(table), "rb") as file:
        columns = set(file.readline().rstrip(b"\n").split(b","))
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_COPIED_AT_ONCE), b"")), columns


def _free_name(path: Path) -> Path:
    names = (f"metrics.earlier{f'-{number}' if number > 1 else ''}.csv" for number in itertools.count(1))
    return next(kept for kept in map(path.with_name, names) if not os.path.lexists(kept))


def row_at(size: int, cells: list[str]) -> bytes | None:
    """Return a row for the end of a table of `size` bytes; None if a reader might see one of its cells in part."""
    row, left = _plain_row(cells), _PAGE - size % _PAGE
    if len(row) + _ROOM <= left:
        return row
    laid, at, padded = [cell.encode("utf-8", "replace") for cell in cells], 0, -1
    for place, cell in enumerate(cells):
        if at >= left:
            # The cell begins on another page.
            left, padded = left + _PAGE, -1
        if at + len(laid[place]) > left:
            if padded < 0 or len(laid[place]) > _PAGE:
                return None
            laid[padded] += b"0" * (left - at)
            at, left, padded = left, left + _PAGE, -1
        at += len(laid[place]) + 1
        if padded < 0 and _TAKES_ZEROS.fullmatch(cell):
            padded = place
    if 0 < left - at < _ROOM:
        if padded < 0:
            return None
        laid[padded] += b"0" * (left - at)
    return b",".join(laid) + b"\n"


def _plain_row(cells: list[str]) -> bytes:
    return (",".join(cells) + "\n").encode("utf-8", "replace")
