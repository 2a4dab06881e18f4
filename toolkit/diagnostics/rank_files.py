"""Reads the step records of the other ranks as their files grow."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolkit.runfolder.layout import other_ranks, rank_file
from toolkit.runfolder.reader import BadLine, Cursor, lines_of, offset_behind, parse_line, read_block
from toolkit.runfolder.records import STEP, Record

MAX_RANKS: Final = 128
"""Ranks that are read beside rank 0."""

_BLOCK_BYTES: Final = 64 * 1024
_EVENT: Final = b'{"event":"'
_STEP_EVENT: Final = b'{"event":"step"'


class RankFiles:
    """Reads what the other ranks have appended since the last call, in one session of a run."""

    def __init__(self, folder: Path, *, session: int) -> None:
        self._folder = folder
        self._session = session
        self._cursors: dict[int, Cursor] = {}

    def read(self, max_bytes: int) -> list[Record]:
        """Return the new step records, with their rank; at most about `max_bytes` of lines, the rest next time.

        Ranks that are furthest behind come first. A rank that cannot be read is skipped.
        """
        try:
            ranks = other_ranks(self._folder)[:MAX_RANKS]
        except OSError:
            return []
        found: list[Record] = []
        left = max_bytes
        for rank in sorted(ranks, key=self._offset):
            if left <= 0:
                break
            try:
                left -= self._read_one(rank, found)
            except OSError:
                continue
        return found

    def _offset(self, rank: int) -> int:
        cursor = self._cursors.get(rank)
        return -1 if cursor is None else cursor.offset

    def _read_one(self, rank: int, found: list[Record]) -> int:
        path = rank_file(self._folder, rank)
        cursor = self._cursors.get(rank)
        if cursor is None:
            # Earlier sessions may be long, and are not compared any more.
            cursor = Cursor(offset_behind(path, self._session - 1, field="session"))
        block = read_block(path, cursor, max_bytes=_BLOCK_BYTES)
        self._cursors[rank] = block.cursor
        for position, line in lines_of(block):
            if line.startswith(_EVENT) and not line.startswith(_STEP_EVENT):
                continue
            record = parse_line(position, line)
            if not isinstance(record, BadLine) and record.get("event") == STEP:
                record["rank"] = rank
                found.append(record)
        return len(block.data)
