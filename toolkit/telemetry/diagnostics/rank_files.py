"""Reads the step records of the other ranks as their files grow."""

from __future__ import annotations

import os
from collections.abc import Iterable
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

MAX_RANKS: Final = 128
"""Ranks whose steps are all read together with rank 0's."""
_FURTHER_AT_ONCE: Final = 64
"""Of further ranks so many are read at a time, in turn: a thousand within half a minute."""

_BLOCK_BYTES: Final = 64 * 1024
_EVENT: Final = b'{"event":"'
_STEP_EVENT: Final = b'{"event":"step"'
_NON_FINITE: Final = b'"non_finite"'
_OTHER_EVENTS: Final = (b'{"event":"finding"', b'{"event":"end"')
"""Besides steps: where a rank hangs, and that it has ended."""


class RankFiles:
    """Reads what the other ranks have appended since the last call, in one session of a run.

    Of ranks beyond the first `MAX_RANKS` only the newest records are read, and of these the ones with NaN or infinity;
    once a rank has had one, its later steps as well.
    """

    def __init__(self, folder: Path, *, session: int) -> None:
        self._folder = folder
        self._session = session
        self._cursors: dict[int, Cursor] = {}
        self._had_nan: set[int] = set()
        self._next_turn = 0

    def read(self, max_bytes: int) -> list[Record]:
        """Return new steps, findings and ends, with their rank; at most about `max_bytes` of lines, the rest next time.

        Ranks that are furthest behind come first. A rank that cannot be read is skipped.
        """
        try:
            everyone = other_ranks(self._folder)
        except OSError:
            return []
        ranks, further = everyone[:MAX_RANKS], everyone[MAX_RANKS:]
        found: list[Record] = []
        left = max_bytes
        for rank in sorted(ranks, key=self._offset):
            if left <= 0:
                break
            try:
                left -= self._read_one(rank, found)
            except OSError:
                continue
        for rank in self._in_turn(further):
            try:
                self._read_newest(rank, found)
            except OSError:
                continue
        return found

    def _in_turn(self, further: list[int]) -> list[int]:
        if not further:
            return []
        first = self._next_turn % len(further)
        self._next_turn = first + _FURTHER_AT_ONCE
        return (further[first:] + further[:first])[:_FURTHER_AT_ONCE]

    def _offset(self, rank: int) -> int:
        cursor = self._cursors.get(rank)
        return -1 if cursor is None else cursor.offset

    def _read_one(self, rank: int, found: list[Record]) -> int:
        path = rank_file(self._folder, rank)
        cursor = self._cursors.get(rank)
        if cursor is None:
            # Earlier sessions may be long, and are not compared any more.
            cursor = Cursor(offset_after(path, self._session - 1, field="session"))
        elif os.stat(path).st_size == cursor.offset:
            return 0
        block = read_block(path, cursor, max_bytes=_BLOCK_BYTES)
        self._cursors[rank] = block.cursor
        self._add(rank, lines_of(block), found)
        return len(block.data)

    def _read_newest(self, rank: int, found: list[Record]) -> None:
        path = rank_file(self._folder, rank)
        size = os.stat(path).st_size
        cursor = self._cursors.get(rank, Cursor())
        if size == cursor.offset:
            return
        if cursor.offset < size - _BLOCK_BYTES:
            cursor = tail_cursor(path, _BLOCK_BYTES)
        block = read_block(path, cursor, max_bytes=_BLOCK_BYTES)
        self._cursors[rank] = block.cursor
        if rank in self._had_nan:
            self._add(rank, lines_of(block), found)
        else:
            news = [
                each
                for each in lines_of(block)
                if _NON_FINITE in each[1] or each[1].startswith(_OTHER_EVENTS)
            ]
            before = len(found)
            self._add(rank, news, found)
            if any(record["event"] == STEP for record in found[before:]):
                self._had_nan.add(rank)

    def _add(self, rank: int, lines: Iterable[tuple[int, bytes]], found: list[Record]) -> None:
        for position, line in lines:
            if line.startswith(_EVENT) and not line.startswith((_STEP_EVENT, *_OTHER_EVENTS)):
                continue
            record = parse_line(position, line)
            if isinstance(record, BadLine) or record.get("event") not in (STEP, FINDING, END):
                continue
            if record.get("session", self._session) == self._session:
                record["rank"] = rank
                found.append(record)
