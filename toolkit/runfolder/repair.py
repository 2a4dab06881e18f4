"""A run folder after a kill made whole: what the journal still holds is written out, the table built again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.runfolder.columns import Columns
from toolkit.runfolder.csv_table import write_rows
from toolkit.runfolder.journal import hold_abandoned, journals_in, record_file_of, shared_memory_folders
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL, PRIVATE
from toolkit.runfolder.reader import Cursor, last_record, read_from
from toolkit.runfolder.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was done to one run folder."""

    recovered: int = 0
    """Records that were only in the journal."""
    rows: int = 0
    bad_lines: int = 0
    in_use: bool = False
    """A living process writes the run, so nothing was touched."""


def repair_run(folder: Path) -> Repair:
    """Write out what the journals of `folder`'s dead sessions still hold, and build its table again.

    A run that a living process writes is left alone.
    """
    recovered = 0
    for path in journals_of(folder):
        count = drain_journal(path)
        if count is None:
            return Repair(in_use=True)
        recovered += count
    if not (folder / METRICS_JSONL).exists():
        return Repair(recovered=recovered)
    rows, bad_lines = build_table(folder / METRICS_JSONL, folder / METRICS_CSV)
    return Repair(recovered=recovered, rows=rows, bad_lines=bad_lines)


def journals_of(folder: Path) -> list[Path]:
    """Return the journals of the run in `folder`, its ranks' included."""
    home = Path(os.path.abspath(folder))
    found = []
    for place in [*shared_memory_folders(), home]:
        for path in journals_in(place):
            record_file = record_file_of(path)
            if record_file is not None and home in (record_file.parent, record_file.parent.parent):
                found.append(path)
    return found


def drain_journal(path: Path) -> int | None:
    """Append to its record file the lines of a dead session's journal that it lacks, and remove the journal.

    Returns how many there were, or None where a living process writes the journal. A line that the kill cut in the
    middle is completed where its beginning matches; nothing is ever rewritten. A journal whose run folder is gone is
    removed with it.
    """
    journal = hold_abandoned(path)
    if journal is None:
        return None
    drained = False
    try:
        count = 0
        if journal.lines and journal.record_file is not None and journal.record_file.parent.is_dir():
            count = _append_missing(journal.lines, journal.record_file)
        drained = True
        return count
    finally:
        journal.close(remove=drained)


def _append_missing(lines: list[tuple[int, bytes]], record_file: Path) -> int:
    try:
        last = last_record(record_file)
    except FileNotFoundError:
        last = None
    last_seq = last["seq"] if last else -1
    missing = [line for seq, line in lines if seq > last_seq]
    if not missing:
        return 0
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(record_file, flags, PRIVATE.file)
    try:
        torn = _torn_tail(descriptor)
        data = b"".join(missing)
        if torn:
            data = data[len(torn) :] if data.startswith(torn) else b"\n" + data
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(missing)


def _torn_tail(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    start = max(0, size - 128 * 1024)
    return os.pread(descriptor, size - start, start).rpartition(b"\n")[2]


def build_table(record_file: Path, table: Path, *, mode: int = PRIVATE.file) -> tuple[int, int]:
    """Build `table` from the records alone and put it in place; return its rows and the lines that were no record."""
    columns = Columns()
    for record in _Records(record_file):
        columns.add_new_of(record)
    records = _Records(record_file)
    temporary = table.with_name(f".{table.name}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, mode)
    try:
        write_rows(descriptor, columns, (columns.row(record) for record in records))
        os.replace(temporary, table)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    return records.count, records.bad_lines


class _Records:
    """The records of a file from its start, each once, in the order of their `seq`."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self.bad_lines = 0
        self._path = path

    def __iter__(self) -> Iterator[Record]:
        cursor = Cursor()
        last_seq = -1
        while True:
            chunk = read_from(self._path, cursor)
            self.bad_lines += chunk.bad_count
            for record in chunk.records:
                seq = record.get("seq")
                if type(seq) is int and seq > last_seq:
                    last_seq = seq
                    self.count += 1
                    yield record
            if chunk.next_offset == cursor.offset:
                return
            cursor = chunk.cursor
