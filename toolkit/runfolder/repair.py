"""A run folder after a kill made whole: what the journal still holds is written out, the table built again."""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.columns import Columns
from toolkit.runfolder.csv_table import write_rows
from toolkit.runfolder.journal import hold_abandoned, journals_in, record_file_of, shared_memory_folders
from toolkit.runfolder.layout import METRICS_CSV, METRICS_JSONL, PRIVATE, RANKS
from toolkit.runfolder.manifest import ManifestError, read_manifest
from toolkit.runfolder.reader import Cursor, last_record, read_from
from toolkit.runfolder.records import Record

_HALF_DONE: Final = re.compile(r"\.(metrics\.csv\.[0-9a-f]{12}|run\.json\.[0-9a-f]{16}\.tmp)")
"""Names of files that were about to be renamed into their place."""

_PATIENCE_S: Final = 1.0
"""How long another process may take that is recovering the same run; one that writes it takes longer."""

_RECORD_FILE: Final = re.compile(rf"{re.escape(METRICS_JSONL)}|{RANKS}/[0-9]{{5,9}}\.jsonl")
"""Where in a run folder a journal may have its lines written."""

_KEPT_HOMELESS_S: Final = 24 * 3600.0
"""A run folder that is not there may be on a disk that is not mounted now; its journal is kept for a day."""


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
    for path, record_file in journals_of(folder):
        count = drain_when_free(path, record_file, wait_s=_PATIENCE_S)
        if count is None:
            return Repair(in_use=True)
        recovered += count
    remove_half_done(folder)
    records = folder / METRICS_JSONL
    try:
        # Whoever may read the records may read the table; no table is a program.
        mode = stat.S_IMODE(records.lstat().st_mode) & 0o666
    except FileNotFoundError:
        return Repair(recovered=recovered)
    rows, bad_lines = build_table(records, folder / METRICS_CSV, mode=mode)
    return Repair(recovered=recovered, rows=rows, bad_lines=bad_lines)


def journals_of(folder: Path) -> list[tuple[Path, Path]]:
    """Return the journals of the run in `folder`, its ranks' included, each with the record file it belongs to.

    Those of earlier sessions come first. A journal names its record file; of a folder that was moved since, the
    manifest still names the journal. Shared memory is everybody's, and so may a run folder be that was downloaded:
    a journal of a stranger is none of this run's, and none leads out of the folder.
    """
    home = Path(os.path.realpath(folder))
    named = _named_by_manifest(home)
    trusted = {_this_user(), _owner_of(home)}
    found = []
    for place in [*shared_memory_folders(), home]:
        for path in journals_in(place):
            told = record_file_of(path) if _owner_of(path) in trusted else None
            if told is None:
                continue
            if place != home and str(path) not in named and not is_on_same_disk(told, home):
                # Another run's, on a disk that may not answer: it is not even looked at.
                continue
            record_file = Path(os.path.realpath(told))
            if home not in (record_file.parent, record_file.parent.parent):
                if place != home and (str(path) not in named or told.parent.exists()):
                    continue
                rank = Path(RANKS) if told.parent.name == RANKS else Path()
                record_file = home / rank / told.name
            if _is_inside(record_file, home):
                found.append((path, record_file))
    return found


def _this_user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _owner_of(path: Path) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def _is_inside(record_file: Path, home: Path) -> bool:
    """Say whether `record_file` is one that a run in `home` has, and no link leads to it."""
    name = record_file.relative_to(home).as_posix() if record_file.is_relative_to(home) else ""
    return _RECORD_FILE.fullmatch(name) is not None and os.path.realpath(record_file) == str(record_file)


def drain_journal(path: Path, record_file: Path | None = None) -> int | None:
    """Append to its record file the lines of a dead session's journal that it lacks, and remove the journal.

    Returns how many there were, or None where a living process writes the journal. A line that the kill cut in the
    middle is completed where its beginning matches; nothing is ever rewritten. A journal whose run folder is gone is
    removed with it, a day later.

    Raises:
        OSError: the record file takes nothing now; the journal is kept.
    """
    journal = hold_abandoned(path)
    if journal is None:
        return None
    is_done = False
    try:
        record_file = record_file or journal.record_file
        count = 0
        if journal.lines and record_file is not None and record_file.parent.is_dir():
            count = _append_missing(journal.lines, record_file)
            is_done = True
        else:
            is_done = not journal.lines or time.time() - _time_of(journal.lines[-1][1]) > _KEPT_HOMELESS_S
        return count
    finally:
        journal.close(remove=is_done)


def drain_when_free(path: Path, record_file: Path, *, wait_s: float) -> int | None:
    """Do what `drain_journal` does, and wait where somebody else is at it: every run that starts recovers others.

    Raises:
        OSError: as `drain_journal`.
    """
    deadline = time.monotonic() + wait_s
    count = drain_journal(path, record_file)
    while count is None and time.monotonic() < deadline:
        time.sleep(0.02)
        count = drain_journal(path, record_file) if path.exists() else 0
    return count


def adopt_journal(path: Path, record_file: Path) -> list[tuple[int, bytes]]:
    """Return the lines of a dead session's journal that its record file lacks, for this process to write.

    The journal is held until the process ends, and then removed by whoever finds nothing missing any more.
    """
    journal = hold_abandoned(path)
    if journal is None:
        return []
    journal.keep()
    last_seq = _last_seq(record_file)
    return [(seq, line) for seq, line in journal.lines if seq > last_seq]


def is_on_same_disk(record_file: Path, folder: Path) -> bool:
    """Say whether a journal's `record_file` lies on the disk of `folder`, without asking the disk it lies on."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return record_file.parent.parent == folder.parent
    points = [
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4]) for mount in mounts
    ]
    return _mount_point(record_file, points) == _mount_point(Path(os.path.realpath(folder)), points)


def _mount_point(path: Path, points: list[str]) -> str:
    above = {str(path), *map(str, path.parents)}
    return max((point for point in points if point in above), key=len, default="")


def remove_half_done(folder: Path) -> None:
    """Remove what a kill left of files that were about to be renamed into their place."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if _HALF_DONE.fullmatch(name):
            try:
                os.unlink(folder / name)
            except OSError:
                continue


def _named_by_manifest(folder: Path) -> set[str]:
    try:
        return {session.journal for session in read_manifest(folder).sessions if session.journal}
    except (OSError, ManifestError):
        return set()


def _append_missing(lines: list[tuple[int, bytes]], record_file: Path) -> int:
    last_seq = _last_seq(record_file)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(record_file, flags, PRIVATE.file)
    try:
        torn = _torn_tail(descriptor)
        if _seq_of(torn) == last_seq:
            # It lacks nothing but its newline, and no reader takes it for a record before it has one.
            last_seq -= 1
        missing = [line for seq, line in lines if seq > last_seq]
        data = b"".join(missing)
        if torn:
            data = data[len(torn) :] if data.startswith(torn) else b"\n" + data
        if data:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(missing)


def _last_seq(record_file: Path) -> int:
    try:
        last = last_record(record_file)
    except FileNotFoundError:
        return -1
    return last["seq"] if last else -1


def _torn_tail(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    start = max(0, size - 128 * 1024)
    return os.pread(descriptor, size - start, start).rpartition(b"\n")[2]


def _seq_of(line: bytes) -> int | None:
    try:
        seq = decode(line).get("seq")
    except RecordError:
        return None
    return seq if type(seq) is int else None


def _time_of(line: bytes) -> float:
    when = decode(line).get("time")
    return when if type(when) is float else 0.0


def build_table(record_file: Path, table: Path, *, mode: int = PRIVATE.file) -> tuple[int, int]:
    """Build `table` from the records alone and put it in place; return its rows and the lines that were no record."""
    columns = Columns()
    newest = -1
    for record in _Records(record_file):
        columns.add_new_of(record)
        newest = record["seq"]
    # The run may be going on: a record that has come since may have fields that have no column here.
    records = _Records(record_file, upto_seq=newest)
    temporary = table.with_name(f".{table.name}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, mode)
    try:
        write_rows(descriptor, columns, (columns.parts(record) for record in records))
        os.replace(temporary, table)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    return records.count, records.bad_lines


class _Records:
    """The records of a file from its start, each once, in the order of their `seq`; none behind `upto_seq`."""

    def __init__(self, path: Path, *, upto_seq: float = math.inf) -> None:
        self.count = 0
        self.bad_lines = 0
        self._path = path
        self._upto_seq = upto_seq

    def __iter__(self) -> Iterator[Record]:
        cursor = Cursor()
        last_seq = -1
        while True:
            chunk = read_from(self._path, cursor)
            self.bad_lines += chunk.bad_count
            for record in chunk.records:
                seq = record.get("seq")
                if type(seq) is int and last_seq < seq <= self._upto_seq:
                    last_seq = seq
                    self.count += 1
                    yield record
            if chunk.next_offset == cursor.offset:
                return
            cursor = chunk.cursor
