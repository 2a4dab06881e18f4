"""How far the engine is behind the files of this node, and since when."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.ranks import node_name
from toolkit.fleet.commits import FileKey, newest_commits, newest_labels
from toolkit.fleet.engine import Engine
from toolkit.fleet.run_folders import read_run_folder, record_files, run_folders
from toolkit.fleet.tail import bytes_of, crc_of
from toolkit.runfolder.reader import BadLine, parse_line
from toolkit.runfolder.records import MAX_LINE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What of a record file is not in the engine yet."""

    path: Path
    bytes: int
    """Without a last line that is still being written."""
    since: float
    """When the first line was recorded that is missing in the engine."""

    @staticmethod
    def shippers(engine: Engine) -> Iterator[str]:
        """Yield what the shippers said last, in words.

        Raises:
            EngineError: the engine did not answer.
        """
        rows = engine.rows(
            "SELECT node, argMax(files, version), argMax(behind, version), argMax(last_error, version), "
            "argMax(clock_ahead_s, version), toUInt32(now()) - argMax(toUInt32(received), version) "
            "FROM shippers GROUP BY node ORDER BY node",
            *("String", "UInt32", "UInt64", "String", "Float64", "Int64"),
        )
        for node, files, behind, last_error, ahead, age in rows:
            clock = f", its clock is {ahead:+.0f} s off" if abs(ahead) > 2 else ""
            error = f", last error: {last_error}" if last_error else ""
            yield f"{node}: {files} files, {behind} bytes behind, reported {age} s ago{clock}{error}"


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
        lag = _lag(path, commit.end if commit is not None else 0)
        # Of a file and its copies one is shipped.
        found[key] = min(lag, found.get(key, lag), key=lambda lag: lag.bytes)
    return list(found.values())


def run_ids_of(places: Iterable[Path]) -> list[str]:
    """Return the ids of the runs below `places`.

    Raises:
        OSError: a folder cannot be listed.
    """
    node = node_name()
    runs = (read_run_folder(folder, node, is_waiting=False) for folder in run_folders(places))
    return list(dict.fromkeys(run.key.run_id for run in runs if run is not None))


def _lag(path: Path, end: int) -> Lag:
    status = os.stat(path)
    first = bytes_of(path, end, end + MAX_LINE_BYTES + 1)
    line, newline, _ = first.partition(b"\n")
    is_whole = bool(newline) or len(first) > MAX_LINE_BYTES
    record = parse_line(end, line) if newline else None
    moment = None if record is None or isinstance(record, BadLine) else record.get("time")
    return Lag(
        path=path,
        bytes=max(0, status.st_size - end) if is_whole else 0,
        since=float(moment) if isinstance(moment, (int, float)) else status.st_mtime,
    )
