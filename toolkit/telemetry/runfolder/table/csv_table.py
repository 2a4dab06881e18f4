"""metrics.csv: a run's records as one table that pandas reads at any time.

The table is worked out from the records alone, so building it again gives the same bytes. Rows are appended by single
writes of whole rows. A reader that comes during one sees it up to the end of a page of the file; so a row is laid out
that no cell crosses into another page: a number before it gets zeros after its fraction, which change no value. Such a
reader finds the last row without its last cells, and never a part of a number. What cannot be laid out like that, and
every new column, comes with a new file that is renamed over the old one.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.layout import PRIVATE
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.portable import SAFELY
from toolkit.telemetry.runfolder.reader import blocks_of, records_in
from toolkit.telemetry.runfolder.records import LOST, Record
from toolkit.telemetry.runfolder.safefile import (
    NO_FILE,
    give_to_owner,
    identity_of,
    open_regular,
    rename_over,
    write_all,
)
from toolkit.telemetry.runfolder.table.columns import ALL, SHORT, Columns

_PAGE: Final = 4096
_ROOM: Final = 64
"""Bytes that a row leaves free at the end of a page, or none: the next row's event and time fit into them."""
_TAKES_ZEROS: Final = re.compile(r"-?[0-9]+\.[0-9]+")
_LONGEST_HEADER: Final = 8 * 1024 * 1024
_READ_BYTES: Final = 16 * 1024
"""Making rows of so many bytes of records takes about a millisecond, for which a training thread may have to wait."""


def table_form(folder: Path, asked: str | None = None) -> str:
    """Return the form of the table of the run in `folder`: what is `asked` for, else what the run said, else short."""
    try:
        said = read_manifest(folder).table
    except (OSError, ManifestError):
        said = None
    return asked or said or SHORT


@dataclass(slots=True, kw_only=True)
class BuiltTable:
    """A table that was built from a record file, and what was found in it."""

    columns: Columns
    rows: int = 0
    last_seq: int = -1
    """The `seq` of the newest row."""
    bad_lines: int = 0
    undeclared: int = 0
    """Sequence numbers that are in no record and in no `lost` record."""
    foreign: int = 0
    """Number of records, if another program wrote all of them."""
    left_alone: bool = False
    """Another program wrote the table and the records, so it was not built."""
    kept: Path | None = None
    """Path of the old table, if it had more data than the records."""
    size: int = 0
    identity: tuple[int, int] = NO_FILE


def build_table(
    record_file: Path,
    table: Path,
    *,
    mode: int = PRIVATE.file,
    form: str = ALL,
    keep: bool = False,
    pause_s: float = 0.0,
) -> BuiltTable:
    """Build `table` from the records alone, in a new file that replaces it.

    With `keep`, an old table with more data is kept under another name, and that of another program is left alone.
    `pause_s` is slept every few rows, so that a training in this process gets the interpreter.

    Raises:
        OSError: the records cannot be read, or the table not written; the old one is then as it was.
    """
    built = _scan(record_file, form, pause_s)
    if keep and built.foreign and os.path.lexists(table):
        built.left_alone = True
        return built
    temporary = table.with_name(f".{table.name}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | SAFELY, mode)
    try:
        try:
            give_to_owner(descriptor, record_file)
            _write_rows(descriptor, record_file, built, pause_s)
            built.identity = identity_of(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        if keep:
            built.kept = _keep_fuller(table, temporary)
        rename_over(temporary, table)
    except BaseException:
        os.unlink(temporary)
        raise
    return built


def _keep_fuller(table: Path, new: Path) -> Path | None:
    """Give `table` a second name if it has more rows or other columns than `new`, its successor; return that name."""
    try:
        (rows, columns), (new_rows, new_columns) = _extent(table), _extent(new)
    except OSError:
        # There is no table, or something else such as a link to a file elsewhere, which is left alone.
        return None
    if not rows or (rows <= new_rows and columns <= new_columns):
        return None
    names = (f"metrics.earlier{f'-{number}' if number > 1 else ''}.csv" for number in itertools.count(1))
    kept = next(path for path in map(table.with_name, names) if not os.path.lexists(path))
    os.rename(table, kept)
    return kept


def _extent(table: Path) -> tuple[int, set[bytes]]:
    """Return how many rows a table has, and its columns."""
    with open(open_regular(table), "rb") as file:
        columns = set(file.readline(_LONGEST_HEADER).rstrip(b"\n").split(b","))
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_LONGEST_HEADER), b"")), columns


def _records_of(record_file: Path, pause_s: float) -> Iterator[tuple[list[Record], int]]:
    for block in blocks_of(record_file, max_bytes=_READ_BYTES):
        yield records_in(block)
        if pause_s:
            time.sleep(pause_s)


def _scan(record_file: Path, form: str, pause_s: float) -> BuiltTable:
    """Return a table with the columns that the records need, and with what is known of them, but no rows yet."""
    built, columns_of_others = BuiltTable(columns=Columns(form)), Columns(form)
    foreign = absent = declared = 0
    for records, bad_lines in _records_of(record_file, pause_s):
        built.bad_lines += bad_lines
        for record in records:
            seq = record.get("seq")
            if type(seq) is not int:
                foreign += 1
                if columns_of_others.has_row(record):
                    columns_of_others.add_new_of(record)
                continue
            if seq > built.last_seq:
                absent += seq - built.last_seq - 1
                built.last_seq = seq
                # What was logged after the end had no number.
                if (
                    record.get("event") == LOST
                    and "from_seq" in record
                    and type(record.get("records")) is int
                ):
                    declared += record["records"]
            if built.columns.has_row(record):
                built.columns.add_new_of(record)
    built.undeclared = max(0, absent - declared)
    if built.last_seq < 0 and foreign:
        built.foreign, built.columns = foreign, columns_of_others
    return built


def _write_rows(descriptor: int, record_file: Path, built: BuiltTable, pause_s: float) -> None:
    """Write the header and a row for each record, each `seq` once; the file may have grown since it was scanned."""
    columns, newest = built.columns, -1
    lines = [columns.header().encode("utf-8", "replace") + b"\n"]
    size = len(lines[0])
    for records, _ in _records_of(record_file, pause_s):
        for record in records:
            seq = record.get("seq")
            is_next = newest < seq <= built.last_seq if type(seq) is int else built.foreign > 0
            if is_next and columns.has_row(record):
                newest = seq if type(seq) is int else newest
                cells = columns.row(record)
                lines.append(row_at(size, cells) or _plain_row(cells))
                size += len(lines[-1])
                built.rows += 1
        write_all(descriptor, b"".join(lines))
        lines = []
    write_all(descriptor, b"".join(lines))
    built.size, built.last_seq = size, newest


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
