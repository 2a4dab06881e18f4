"""What of the files of this node the engine lacks: how far it is behind, and whether what it has is right."""

from __future__ import annotations

import os
from array import array
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from toolkit.telemetry.core.ranks import node_name
from toolkit.telemetry.fleet.commits import Commit, FileKey, lines_of, newest_commits, newest_labels
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.run_folders import read_run_folder, record_files
from toolkit.telemetry.fleet.shipping.watch import ShippedFile
from toolkit.telemetry.fleet.tail import RecordTail, Rows, bytes_of, crc_of
from toolkit.telemetry.runfolder.folder_list import run_folders
from toolkit.telemetry.runfolder.manifest import ManifestError
from toolkit.telemetry.runfolder.reader import BadLine, parse_line
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES

_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""How much of a file the engine is asked for at once: a live run of the same node waits for the answer."""

REPLACED: Final = "the file was truncated or replaced"
_MIXED: Final = "the engine had lines that the file has not"


def verify_file(engine: Engine, file: ShippedFile) -> Generator[str | None, None, None]:
    """Compare a file with the engine and send it again if it differs; yield what was wrong, and None after each slice.

    Lines may be sent between two slices: what is compared ends where the file was shipped to at first.

    Raises:
        EngineError: the engine refused or does not answer.
        OSError: the file cannot be read.
    """
    commit, known = newest_commits(engine, [file.run.found.key.run_id]).get(file.key), file.commit
    has_less = commit is None or (known is not None and commit.gen == known.gen and commit.end < known.end)
    if has_less and known is not None and known.end and not file.is_superseded:
        file.forget()
        yield "the engine had lost how far it was taken; it is shipped again"
    if commit is None or has_less or _is_past(file, commit):
        return
    if crc_of(file.path, commit.end) != commit.crc:
        file.forget()
        yield f"{REPLACED}, and is shipped again"
        return
    is_repaired = False
    whole = Commit(run_id=commit.run_id, rank=commit.rank, gen=commit.gen)
    tail = RecordTail(file.path, file.run.found.key, whole)
    while (begin := tail.commit.end) < commit.end:
        rows, offset = Rows(), tail.offset
        while not rows.is_full and tail.read(rows, until=commit.end) and tail.offset > offset:
            offset = tail.offset
        if tail.commit.end == begin:
            break
        if not _is_there(engine, file, commit, rows, begin, tail.commit.end):
            is_repaired = True
            for block in rows.blocks():
                engine.insert(*block)
            is_mixed = not _is_there(engine, file, commit, rows, begin, tail.commit.end)
            if is_mixed and not _is_past(file, commit):
                # A shipper never deletes: what does not belong there stays in its generation.
                file.forget()
                file.commit, file.has_begun = commit.next_generation(_MIXED), False
                yield f"{_MIXED}; it is shipped again as a new generation"
                return
        yield None
    if is_repaired:
        yield "the engine lacked a part of it, and it is sent again"


def has_lines(engine: Engine, file: ShippedFile, commit: Commit, end: int) -> bool:
    """Return whether a file has the lines that were taken of this generation from its commit to `end`.

    Raises:
        EngineError: the engine did not answer.
        OSError: the file cannot be read.
    """
    at = commit.end
    # Not beyond: another shipper may send more meanwhile.
    while at < end and (data := lines_of(engine, commit, at, min(end, at + _BYTES_AT_ONCE))):
        if data != bytes_of(file.path, at, at + len(data)):
            return False
        at += len(data)
    return at == end


def _is_past(file: ShippedFile, commit: Commit) -> bool:
    """Return whether it does not matter any more what the engine has of this generation."""
    return file.is_superseded or (file.commit is not None and file.commit.gen > commit.gen)


def _is_there(engine: Engine, file: ShippedFile, commit: Commit, rows: Rows, begin: int, end: int) -> bool:
    """Return whether the engine has these rows of a file, which are all between two offsets, and no others."""
    if lines_of(engine, commit, begin, end) != bytes_of(file.path, begin, end):
        return False
    between = f"{commit.where} AND at >= {begin} AND at < {end}"
    # Of a value that is not a number only its place counts: there are several forms of NaN.
    bits = "if(isNaN(value), 0, reinterpretAsUInt64(value))"
    found = engine.rows(
        f"SELECT (SELECT count() FROM records FINAL WHERE {between}), count(), sum(CRC32(metric)), sum(at), "
        f"sum((at + CRC32(metric)) * {bits}) FROM points FINAL WHERE {between}"
    )
    own = array("Q", array("d", (value if value == value else 0.0 for *_, value in rows.values)).tobytes())
    names, places = [crc32(row[-4].encode()) for row in rows.values], [row[-3] for row in rows.values]
    # Each value counts by its place and metric, so that exchanged ones are found.
    values = sum((at + name) * value for at, name, value in zip(places, names, own, strict=True))
    expected = (len(rows), len(places), sum(names), sum(places) % 2**64, values % 2**64)
    return found == [expected]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What of a record file is not in the engine yet."""

    path: Path
    bytes: int
    """Without a last line that is still being written."""
    since: float
    """When the first line was recorded that is missing in the engine."""


def lags_of(engine: Engine, places: Iterable[Path], *, keep_days: int = 0) -> list[Lag]:
    """Return how far the engine is behind each record file below `places` that is shipped.

    Left out are runs that were deleted on a page or are older than `keep_days`, copies, and files of which another
    node has shipped a newer one.

    Raises:
        EngineError: the engine did not answer.
        OSError: a folder cannot be listed.
    """
    node = node_name()
    runs = []
    for folder in run_folders(places):
        with suppress(ManifestError):
            run = read_run_folder(folder)
            runs += [run] if run is not None and not run.key.is_older_than(keep_days) else []
    labels = newest_labels(engine, {run.key.run_id for run in runs})
    files = [
        ((run.key.run_id, rank), path)
        for run in runs
        if not labels.get(run.key.run_id, (0, False))[1]
        for rank, path in record_files(run.folder).items()
    ]
    commits = newest_commits(engine, {run_id for (run_id, _), _ in files})
    found: dict[FileKey, Lag] = {}
    for key, path in files:
        commit = commits.get(key)
        is_anothers = commit is not None and commit.node != node
        if commit is not None and is_anothers and crc_of(path, commit.end) != commit.crc:
            continue
        lag = _lag(path, commit.end if commit is not None else 0)
        # Of a file and its copies one is shipped.
        found[key] = min(lag, found.get(key, lag), key=lambda lag: lag.bytes)
    return list(found.values())


def _lag(path: Path, end: int) -> Lag:
    status = os.stat(path)
    first = bytes_of(path, end, end + MAX_LINE_BYTES + 1)
    line, newline, _ = first.partition(b"\n")
    is_whole = bool(newline) or len(first) > MAX_LINE_BYTES
    record = parse_line(end, line) if newline else None
    timestamp = None if record is None or isinstance(record, BadLine) else record.get("time")
    return Lag(
        path=path,
        bytes=max(0, status.st_size - end) if is_whole else 0,
        since=float(timestamp) if isinstance(timestamp, (int, float)) else status.st_mtime,
    )
