"""What of the files of this node the engine lacks: how far it is behind, and whether what it has is right."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.ranks import node_name
from toolkit.telemetry.fleet.commits import Commit, FileKey, Strays, newest_commits, newest_labels
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.run_folders import read_run_folder, record_files
from toolkit.telemetry.fleet.schema import AT_WEIGHT, BAD_WEIGHT, N_WEIGHT, PART_BYTES
from toolkit.telemetry.fleet.shipping.watch import ShippedFile
from toolkit.telemetry.fleet.tail import LINE_SUM, Position, RecordTail, Rows, Sums, bytes_of, crc_of
from toolkit.telemetry.runfolder.folder_list import run_folders
from toolkit.telemetry.runfolder.reader import BadLine, parse_line
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES

_PARTS_AT_ONCE: Final = 4
"""How many parts of a file the engine is asked for at once: a live run of the same node waits for the answer."""

REPLACED: Final = "the file was truncated or replaced"
_MIXED: Final = "the engine had lines that the file has not"

_Sums = tuple[int, ...]
"""Number and sum of the lines of a part, number and sum of its values."""


def _expected(tail: RecordTail) -> dict[int, _Sums]:
    """Return what a file adds up to by part, as far as it was read."""
    return {number: tuple(part) for number, part in (tail.sums.parts.items() if tail.sums else ())}


def verify_file(
    engine: Engine, file: ShippedFile, *, reads_all: bool = False
) -> Generator[str | None, None, None]:
    """Compare a file with the engine and send it again if it differs; yield what was wrong, and None after each slice.

    What this process has sent is not read again, unless it differs from what the engine has or `reads_all` is set.
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
    sent = file.tail
    is_known = sent is not None and (sent.gen, sent.position.end) == (commit.gen, commit.end)
    if sent is not None and sent.sums and is_known and not reads_all:
        differs = yield from _differs(engine, commit, _expected(sent))
        if not differs:
            return
    tail = _from_start(file, commit)
    for _ in _rows_until(tail, commit.end):
        yield None
    if (tail.position.end, tail.position.crc) != (commit.end, commit.crc):
        file.forget()
        yield f"{REPLACED}, and is shipped again"
        return
    expected = _expected(tail)
    differs = yield from _differs(engine, commit, expected)
    if not differs:
        return
    for rows in _rows_until(_from_start(file, commit), commit.end):
        for block in rows.blocks():
            engine.insert(*block)
        yield None
    still_differs = yield from _differs(engine, commit, expected)
    if still_differs and not _is_past(file, commit):
        # A shipper never deletes: what does not belong there stays in its generation.
        file.forget()
        file.commit, file.has_begun = commit.next_generation(_MIXED), False
        yield f"{_MIXED}; it is shipped again as a new generation"
    else:
        yield "the engine lacked a part of it, and it is sent again"


def has_lines(file: ShippedFile, commit: Commit, strays: Strays | None) -> bool:
    """Return whether a file has the lines that were taken of this generation after its commit's end.

    Raises:
        OSError: the file cannot be read.
    """
    if strays is None:
        return True
    position, sums = Position(end=commit.end), Sums()
    for rows in _rows_until(
        RecordTail(file.path, file.run.found.key, file.rank, commit.gen, position), strays.end
    ):
        sums.add(rows, 0)
    count, total = (sum(part[number] for part in sums.parts.values()) % 2**64 for number in (0, 1))
    return position.end == strays.end and {(count, total)} == {
        (strays.lines, strays.low),
        (strays.lines, strays.high),
    }


def _is_past(file: ShippedFile, commit: Commit) -> bool:
    """Return whether it does not matter any more what the engine has of this generation."""
    return file.is_superseded or (file.commit is not None and file.commit.gen > commit.gen)


def _from_start(file: ShippedFile, commit: Commit) -> RecordTail:
    return RecordTail(file.path, file.run.found.key, file.rank, commit.gen, Position())


def _rows_until(tail: RecordTail, end: int) -> Iterator[Rows]:
    """Yield the rows of a file up to `end`, some at a time."""
    while tail.position.end < end:
        rows, before = Rows(), tail.offset
        if not tail.read(rows, until=end) or tail.offset == before:
            return
        yield rows


def _differs(engine: Engine, commit: Commit, expected: dict[int, _Sums]) -> Generator[None, None, bool]:
    """Return whether the engine has something else than the file."""
    nothing = (0, 0, 0, 0)
    for first in range(0, commit.end // PART_BYTES + 1, _PARTS_AT_ONCE):
        numbers = range(first, first + _PARTS_AT_ONCE)
        found = _parts_in_engine(engine, commit, numbers)
        if any(found.get(number, {nothing}) != {expected.get(number, nothing)} for number in numbers):
            return True
        yield
    return False


def _parts_in_engine(engine: Engine, commit: Commit, numbers: range) -> dict[int, set[_Sums]]:
    """Return the sums of each part: of rows with the same key once with the least and once with the greatest hash."""
    begin, until = numbers.start * PART_BYTES, min(numbers.stop * PART_BYTES, commit.end)
    file = f"run_id = {quote(commit.run_id)} AND rank = {commit.rank} AND gen = {commit.gen}"
    lines = engine.rows(
        f"SELECT toUInt64(intDiv(at, {PART_BYTES})) AS part, count(), sum(low), sum(high) FROM ("
        f"SELECT at, min({LINE_SUM}) AS low, max({LINE_SUM}) AS high FROM records "
        f"WHERE {file} AND at >= {begin} AND at < {until} GROUP BY at) GROUP BY part",
        *("UInt64", "UInt64", "UInt64", "UInt64"),
    )
    values = engine.rows(
        "SELECT part, count(), sum(least), sum(most) FROM (SELECT min(hash) AS least, max(hash) AS most, "
        f"toUInt64(intDiv(max(at), {PART_BYTES})) AS part FROM (SELECT metric, n, at, "
        "reinterpretAsUInt64(reinterpretAsString(value)) + halfMD5(metric) "
        f"+ at * {AT_WEIGHT} + n * {N_WEIGHT} + bad * {BAD_WEIGHT} AS hash "
        f"FROM points WHERE {file} AND at >= {begin} AND at < {until}) GROUP BY metric, n) GROUP BY part",
        *("UInt64", "UInt64", "UInt64", "UInt64"),
    )
    counted = {part: row for part, *row in values}
    found: dict[int, set[_Sums]] = {
        part: {(0, 0, points, low), (0, 0, points, high)} for part, (points, low, high) in counted.items()
    }
    for part, count, least, greatest in lines:
        points, low, high = counted.get(part, (0, 0, 0))
        found[part] = {(count, least, points, low), (count, greatest, points, high)}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What of a record file is not in the engine yet."""

    run_id: str
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
    runs = [
        run
        for folder in run_folders(places)
        if (run := read_run_folder(folder, node, is_waiting=False)) is not None
        and not run.key.is_older_than(keep_days)
    ]
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
        lag = _lag(key[0], path, commit.end if commit is not None else 0)
        # Of a file and its copies one is shipped.
        found[key] = min(lag, found.get(key, lag), key=lambda lag: lag.bytes)
    return list(found.values())


def _lag(run_id: str, path: Path, end: int) -> Lag:
    status = os.stat(path)
    first = bytes_of(path, end, end + MAX_LINE_BYTES + 1)
    line, newline, _ = first.partition(b"\n")
    is_whole = bool(newline) or len(first) > MAX_LINE_BYTES
    record = parse_line(end, line) if newline else None
    timestamp = None if record is None or isinstance(record, BadLine) else record.get("time")
    return Lag(
        run_id=run_id,
        path=path,
        bytes=max(0, status.st_size - end) if is_whole else 0,
        since=float(timestamp) if isinstance(timestamp, (int, float)) else status.st_mtime,
    )
