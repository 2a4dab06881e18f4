"""Steps that a resume did again: what an earlier session logged of them does not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from toolkit.runfolder.reader import BadLine, blocks_of, parse_line
from toolkit.runfolder.records import START, STEP, Record

_BEGINS: Final = tuple(
    [b'"event":"%s"' % kind, b'"event": "%s"' % kind] for kind in (START.encode(), STEP.encode())
)


def redone_from(records: Iterable[Record]) -> dict[int, int]:
    """Return for each session the step from which on a later one logged again."""
    first: dict[int, int] = {}
    for record in records:
        session, step = record.get("session"), record.get("global_step")
        if record.get("event") == STEP and type(step) is int and type(session) is int:
            first.setdefault(session, step)
    limits: dict[int, int] = {}
    lowest: int | None = None
    for session in sorted(first, reverse=True):
        if lowest is not None:
            limits[session] = lowest
        lowest = first[session] if lowest is None else min(lowest, first[session])
    return limits


def redone_in(log: Path) -> dict[int, int]:
    """Return `redone_from` of a record file, of which only the first step of each session is parsed.

    Raises:
        OSError: it cannot be read.
    """
    firsts: list[Record] = []
    starts, steps = _BEGINS
    marks = steps
    for block in blocks_of(log):
        at = 0
        while (at := _find(block.data, marks, at)) >= 0:
            end = block.data.find(b"\n", at)
            if marks is steps:
                record = parse_line(0, block.data[block.data.rfind(b"\n", 0, at) + 1 : end])
                firsts += [] if isinstance(record, BadLine) else [record]
            marks, at = starts if marks is steps else steps, end
    return redone_from(firsts)


def counts(record: Record, limits: Mapping[int, int]) -> bool:
    """Return whether a record is none of a step that a later session did again."""
    session, step = record.get("session"), record.get("global_step")
    limit = limits.get(session) if type(session) is int else None
    return limit is None or type(step) is not int or step < limit


def _find(data: bytes, marks: Iterable[bytes], at: int) -> int:
    return min((found for mark in marks if (found := data.find(mark, at)) >= 0), default=-1)
