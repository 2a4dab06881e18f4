"""Reads the step records of the other ranks as their files grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.layout import other_ranks, rank_file
from toolkit.telemetry.runfolder.reader import (
    BadLine,
    Cursor,
    lines_of,
    offset_after,
    parse_line,
    read_block,
    tail_cursor,
)
from toolkit.telemetry.runfolder.records import END, FINDING, STEP, Record

_BLOCK_BYTES: Final = 64 * 1024
_MOST_BEHIND: Final = 1024 * 1024
"""Of a file that grows faster than it is read, the newest lines are read, and those before them are left out."""
_EVENTS: Final = (b'{"event":"step"', b'{"event":"finding"', b'{"event":"end"')
"""Steps, where a rank hangs, and that it has ended."""
_EVENT: Final = b'{"event":"'


class RankFiles:
    """Reads what the other ranks have appended since the last call, in one session of a run."""

    def __init__(self, folder: Path, *, session: int) -> None:
        self._folder = folder
        self._session = session
        self._cursors: dict[int, Cursor] = {}
        self._read_at: dict[int, int] = {}
        """In which call each rank was read last."""
        self._calls = 0

    def read(self, max_bytes: int) -> list[Record]:
        """Return new steps, findings and ends, with their rank; at most about `max_bytes` of lines, the rest next time.

        Ranks that were read the longest ago come first. A rank that cannot be read is skipped.
        """
        self._calls += 1
        found: list[Record] = []
        left = max_bytes
        try:
            ranks = sorted(other_ranks(self._folder), key=lambda rank: self._read_at.get(rank, 0))
        except OSError:
            return []
        for rank in ranks:
            if left <= 0:
                break
            try:
                left -= self._read_one(rank, found)
            except OSError:
                continue
        return found

    def _read_one(self, rank: int, found: list[Record]) -> int:
        path = rank_file(self._folder, rank)
        size = os.stat(path).st_size
        cursor = self._cursors.get(rank)
        if cursor is None:
            # Earlier sessions may be long, and are not compared any more.
            cursor = Cursor(offset_after(path, self._session - 1, field="session"))
        elif size == cursor.offset:
            return 0
        if size - cursor.offset > _MOST_BEHIND:
            cursor = tail_cursor(path, _BLOCK_BYTES)
        block = read_block(path, cursor, max_bytes=_BLOCK_BYTES)
        self._cursors[rank], self._read_at[rank] = block.cursor, self._calls
        for position, line in lines_of(block):
            if line.startswith(_EVENT) and not line.startswith(_EVENTS):
                continue
            record = parse_line(position, line)
            if isinstance(record, BadLine) or record.get("event") not in (STEP, FINDING, END):
                continue
            if record.get("session", self._session) == self._session:
                record["rank"] = rank
                found.append(record)
        return len(block.data)
