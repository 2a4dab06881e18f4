"""A run of another tool in numbers: what `telemetry show --json` prints."""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import compress
from typing import Any, TypeVar

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.importers.source import (
    NO_STEP,
    SYSTEM,
    Column,
    RunSource,
    ends_of,
    named_columns,
    read_all,
)
from toolkit.telemetry.runfolder.codec import name_of_non_finite

_T = TypeVar("_T")


class Series:
    """Count, first, last, smallest and largest of a metric, fed in the order of the file."""

    def __init__(self) -> None:
        self.count = 0
        self.nan = self.inf = self.neg_inf = self.steps_back = 0
        self._first: tuple[int, float, float] | None = None
        self._last: tuple[int, float, float] | None = None
        self._min = math.inf
        self._max = -math.inf

    def take(self, column: Column) -> None:
        """Add the points of a column."""
        if not len(column):
            return
        steps, values = column.steps, column.values
        if self._first is None:
            self._first = (steps[0], column.times[0], values[0])
        self.steps_back += self._last is not None and steps[0] < self._last[0]
        self._last = (steps[-1], column.times[-1], values[-1])
        self.count += len(column)
        self.steps_back += sum(map(operator.gt, steps, steps[1:]))
        lowest, highest = ends_of(values)
        if not math.isfinite(lowest + highest):
            self.nan += sum(map(math.isnan, values))
            self.inf += values.count(math.inf)
            self.neg_inf += values.count(-math.inf)
            finite = [*filter(math.isfinite, values)]
            lowest, highest = min(finite, default=math.inf), max(finite, default=-math.inf)
        self._min, self._max = min(self._min, lowest), max(self._max, highest)

    def as_json(self) -> dict[str, Any]:
        """Return it as an object without NaN words."""
        return {
            "count": self.count,
            "first": _point(self._first),
            "last": _point(self._last),
            "min": self._min if self._min <= self._max else None,
            "max": self._max if self._min <= self._max else None,
            "nan": self.nan,
            "inf": self.inf,
            "neg_inf": self.neg_inf,
            "steps_back": self.steps_back,
        }


def _point(point: tuple[int, float, float] | None) -> dict[str, Any] | None:
    if point is None:
        return None
    step, timestamp, value = point
    found: dict[str, Any] = {"step": None if step == NO_STEP else step, "value": number(value)}
    if not math.isnan(timestamp):
        found["time"] = timestamp
    return found


def number(value: float) -> float | str:
    """Return a number for JSON; one that is not finite becomes its word."""
    return value if math.isfinite(value) else name_of_non_finite(value)


class _Part:
    """The series of a run or of one of its pieces."""

    def __init__(self) -> None:
        self.metrics: dict[str, Series] = {}
        self.system: dict[str, Series] = {}

    def take(self, name: str, column: Column) -> None:
        series = (
            self.system
            if column.kind == SYSTEM and column.steps and column.steps[0] == NO_STEP
            else self.metrics
        )
        series.setdefault(name, Series()).take(column)

    def as_json(self) -> dict[str, Any]:
        return {
            "metrics": {name: series.as_json() for name, series in self.metrics.items()},
            "system": {name: series.as_json() for name, series in self.system.items()},
        }


def summarise(source: RunSource, now: float) -> dict[str, Any]:
    """Read a run to its end and return it as one object."""
    whole = _Part()
    pieces: dict[int, _Part] = {}
    sessions: dict[int, dict[str, Any]] = {}
    not_numbers: dict[int, dict[str, int]] = {}
    passed_over: dict[int, dict[str, int]] = {}
    events: dict[str, int] = {}
    for batch in read_all(source):
        if batch.replaced:
            whole = _Part()
            for counts in (pieces, sessions, not_numbers, passed_over, events):
                counts.clear()
        for column in batch.columns:
            pieces.setdefault(column.piece, _Part()).take(column.metric, column)
        for name, column in named_columns(source.info, batch):
            whole.take(name, column)
            add_session(sessions, column)
        for kept, found in ((not_numbers, batch.not_numbers), (passed_over, batch.passed_over)):
            for (piece, name), count in found.items():
                inner = kept.setdefault(piece, {})
                inner[name] = inner.get(name, 0) + count
        for event in batch.events:
            events[event.kind] = events.get(event.kind, 0) + 1
    info = source.info
    status = source.status(now)
    return {
        "format": info.format,
        "source_id": info.source_id,
        "run_id": info.run_id or None,
        "name": info.name,
        "group": info.group or None,
        "parent": info.parent or None,
        "deleted": info.deleted,
        "writer": info.writer or None,
        "status": {
            "state": status.state,
            "last_sign": None if math.isnan(status.last_sign) else status.last_sign,
            "ended": None if math.isnan(status.ended) else status.ended,
        },
        "config": plain(info.config),
        "tags": info.tags,
        "axes": info.axes,
        "notes": info.notes,
        "sessions": with_abandoned(sessions),
        "events": events,
        **whole.as_json(),
        "pieces": [
            {
                "path": piece.path,
                **pieces.get(index, _Part()).as_json(),
                "not_numbers": not_numbers.get(index, {}),
                "passed_over": passed_over.get(index, {}),
            }
            for index, piece in enumerate(info.pieces)
        ],
    }


def add_session(sessions: dict[int, dict[str, Any]], column: Column) -> None:
    """Add the points of a column to its session."""
    steps = [step for step in (ends_of(column.steps) if column.steps else ()) if step != NO_STEP]
    if not steps:
        return
    found = sessions.setdefault(
        column.session,
        {"session": column.session, "first_step": steps[0], "last_step": steps[-1], "points": 0},
    )
    found["first_step"] = min(found["first_step"], steps[0])
    found["last_step"] = max(found["last_step"], steps[-1])
    found["points"] += len(column)


def with_abandoned(sessions: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sessions in order; what a later one logged again is abandoned, from which step on."""
    found = [sessions[number] for number in sorted(sessions)]
    lowest: int | None = None
    for session in reversed(found):
        is_left = lowest is not None and lowest <= session["last_step"]
        session["abandoned_from"] = max(lowest or 0, session["first_step"]) if is_left else None
        lowest = session["first_step"] if lowest is None else min(lowest, session["first_step"])
    return found


def read_counted(source: RunSource, begin: Callable[[], _T], take: Callable[[_T, str, Column], None]) -> _T:
    """Return what `begin` made after it took each column by its name, without steps that a later session did again."""
    limits: dict[int, int] = {}
    for _ in range(2):
        found, sessions = begin(), dict[int, dict[str, Any]]()
        for batch in read_all(source):
            if batch.replaced:
                found, sessions = begin(), {}
            for name, column in named_columns(source.info, batch):
                add_session(sessions, column)
                take(found, name, before(column, limits.get(column.session)))
        limits = abandoned_from(sessions)
        if not limits:
            break
    return found


def abandoned_from(sessions: dict[int, dict[str, Any]]) -> dict[int, int]:
    """Return for each session of which a later one did steps again the first of these steps."""
    found = with_abandoned(sessions)
    return {one["session"]: one["abandoned_from"] for one in found if one["abandoned_from"] is not None}


def before(column: Column, limit: int | None) -> Column:
    """Return a column without the steps from `limit` on."""
    if limit is None:
        return column
    kept = [step < limit for step in column.steps]
    return replace(
        column,
        steps=array("q", compress(column.steps, kept)),
        times=array("d", compress(column.times, kept)),
        values=array("d", compress(column.values, kept)),
    )


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` for JSON: no NaN, no deep nesting, no odd types."""
    if type(value) is int and abs(value) >= 2**63:
        return float(value) if abs(value) < 2**1000 else str(value)[:400]
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return number(value)
    if depth < 8 and type(value) is dict:
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if depth < 8 and type(value) in (list, tuple):
        return [plain(inner, depth + 1) for inner in value[:1000]]
    return str(value)[:1000]


def summaries(sources: Iterable[RunSource], now: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Return every run as an object, and a sentence for each that no rule of its format could read."""
    guard = Guard()
    found, problems = [], []
    for source in sources:
        run = guard.call(f"reading {source.info.format} logs", summarise, source, now)
        if run is None:
            problems.append(f"{source.info.name} could not be read: {', '.join(guard.counts)}")
        else:
            found.append(run)
    return found, problems
