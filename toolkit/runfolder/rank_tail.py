"""What the end of a rank's record file says: its last sign of life, its pace, and whether it ended."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toolkit.runfolder.codec import RecordError, decode
from toolkit.runfolder.reader import tail_lines
from toolkit.runfolder.records import END, NON_FINITE, STEP, SYSTEM, Record

_TAIL_BYTES: Final = 8 * 1024
"""Some dozens of records, and little enough for the files of a thousand ranks."""
_MOST_BYTES: Final = 256 * 1024
_FEWEST_LINES: Final = 8
_FARTHEST: Final = 2**53
_LATEST: Final = 1e11
"""The year 5138: a date has no later one to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTail:
    """The newest session of a rank, as the end of its file shows it."""

    rank: int
    session: int
    size: int
    changed_at: float
    """When the file was last written, by the clock of its file system."""
    last_time: float
    """The time of its last record."""
    last_step_time: float | None
    last_step: int | None
    records: int
    """Records in this part of the file."""
    usual_s: float
    """The median of the pauses between these records."""
    longest_s: float
    """The longest of them."""
    has_system: bool
    """Whether system records are among them, which come while a training waits."""
    end: str | None
    """The status in its end record; None without one."""
    nan_step: int | None
    """The step of its newest step record, if the loss or another metric is NaN or infinite there."""
    nan_metrics: tuple[str, ...] = ()


def read_tail(path: Path, rank: int) -> RankTail | None:
    """Return what the end of the record file at `path` says; None if it has no readable record.

    Raises:
        OSError: the file is missing, unreadable, or no regular file.
    """
    status = os.lstat(path)
    within = _TAIL_BYTES
    while True:
        lines = tail_lines(path, within)
        # A record may be 64 KiB long.
        if within >= min(status.st_size, _MOST_BYTES) or len(lines) >= _FEWEST_LINES:
            break
        within *= 4
    records = [record for line in lines if (record := _record(line)) is not None]
    return _tail_of(records, rank, status) if records else None


def _tail_of(records: list[Record], rank: int, status: os.stat_result) -> RankTail:
    session = records[-1]["session"]
    mine = [record for record in records if record["session"] == session]
    times = [float(record["time"]) for record in mine]
    pauses = sorted(max(0.0, after - before) for before, after in itertools.pairwise(times))
    steps = [record for record in mine if record.get("event") == STEP]
    ends = [index for index, record in enumerate(mine) if record.get("event") == END]
    # Behind the end record come at most a few records about the closing, and no step.
    has_ended = bool(ends) and not any(record.get("event") == STEP for record in mine[ends[-1] :])
    numbers = [
        number
        for record in mine
        if type(number := record.get("global_step")) is int and 0 <= number < _FARTHEST
    ]
    bad = steps[-1].get(NON_FINITE) if steps else None
    names = tuple(str(name)[:100] for name in bad)[:20] if isinstance(bad, dict) else ()
    return RankTail(
        rank=rank,
        session=session,
        size=status.st_size,
        changed_at=status.st_mtime,
        last_time=max(times),
        last_step_time=float(steps[-1]["time"]) if steps else None,
        last_step=numbers[-1] if numbers else None,
        records=len(mine),
        usual_s=pauses[len(pauses) // 2] if pauses else 0.0,
        longest_s=pauses[-1] if pauses else 0.0,
        has_system=any(record.get("event") == SYSTEM for record in mine),
        end=str(mine[ends[-1]].get("status"))[:40] if has_ended else None,
        nan_step=numbers[-1] if names and numbers else None,
        nan_metrics=names,
    )


def _record(line: bytes) -> Record | None:
    if b'"seq"' not in line:
        return None
    try:
        record = decode(line)
    except RecordError:
        return None
    moment, session = record.get("time"), record.get("session")
    # A run folder is not trusted.
    has_time = isinstance(moment, (int, float)) and 0 <= moment < _LATEST
    return record if has_time and type(session) is int and 0 <= session < _FARTHEST else None
