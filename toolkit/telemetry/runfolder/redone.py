"""Steps that a resume did again: what an earlier session logged of them does not count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from toolkit.telemetry.runfolder.reader import BadLine, blocks_of, parse_line
from toolkit.telemetry.runfolder.records import START, STEP, Record

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


class Redone(NamedTuple):
    """The steps of a record file that a later session did again."""

    limits: dict[int, int]
    """For each session the step from which on."""
    until: float
    """No later step was done again."""

    def may_have(self, step: int | None) -> bool:
        """Return whether a step may be one of them."""
        return step is not None and bool(self.limits) and min(self.limits.values()) <= step <= self.until


def redone_in(log: Path) -> Redone:
    """Return which steps were done again; of each session only the first and the last step are parsed.

    Raises:
        OSError: it cannot be read.
    """
    firsts: list[Record] = []
    until = -math.inf
    starts, steps = _BEGINS
    marks = steps
    for block in blocks_of(log):
        data, at = block.data, 0
        while (at := min((place for mark in marks if (place := data.find(mark, at)) >= 0), default=-1)) >= 0:
            if marks is steps:
                firsts += _record_at(data, at)
            elif firsts:
                before = max(data.rfind(mark, 0, at) for mark in steps)
                last = _record_at(data, before) if before >= 0 else []
                step = last[0].get("global_step") if last else None
                until = max(until, step if type(step) is int else math.inf)
            marks, at = starts if marks is steps else steps, data.find(b"\n", at)
    return Redone(redone_from(firsts), until)


def counts(record: Record, limits: Mapping[int, int]) -> bool:
    """Return whether no later session did the step of a record again."""
    session, step = record.get("session"), record.get("global_step")
    limit = limits.get(session) if type(session) is int else None
    return limit is None or type(step) is not int or step < limit


def _record_at(data: bytes, at: int) -> list[Record]:
    """Return the record around a place; none if its line is not one."""
    record = parse_line(0, data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)])
    return [] if isinstance(record, BadLine) else [record]
