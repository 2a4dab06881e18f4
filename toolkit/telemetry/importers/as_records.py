"""The points of a run as rows, those of a step together, and as records of ours."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from toolkit.telemetry.importers.source import (
    NO_STEP,
    Batch,
    Column,
    Event,
    RunSource,
    SourceInfo,
    named_columns,
    read_all,
)
from toolkit.telemetry.runfolder.codec import encodable, name_of_non_finite
from toolkit.telemetry.runfolder.records import (
    COMPLETION,
    LOSS_JUMP,
    NAN_INF_DETECTED,
    NON_FINITE,
    RESERVED,
    Record,
)

_TAKEN_NAMES: Final = frozenset({*RESERVED, "global_step", NAN_INF_DETECTED, LOSS_JUMP})
_LOOKED_AT: Final = 8
"""Rows of one step in which a free place is looked for: a log whose step never changes has very many."""
_time_of: Final = attrgetter("time")


@dataclass(slots=True)
class Row:
    """Values that were logged together."""

    kind: str
    session: int
    """From 0 on."""
    step: int
    time: float
    """Minus infinity if it has none."""
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.time):
            self.time = -math.inf

    def record(self) -> Record:
        """Return it as a record of ours; a number that is not finite is also named in `non_finite`."""
        record: Record = {"event": self.kind}
        if math.isfinite(self.time):
            record["time"] = self.time
        record["session"] = max(self.session, 0) + 1
        if self.step != NO_STEP:
            record["global_step"] = self.step
        record.update(self.fields)
        odd = {
            name: name_of_non_finite(value)
            for name, value in self.fields.items()
            if type(value) is float and not math.isfinite(value)
        }
        return {**record, NON_FINITE: odd} if odd else record


def field_name(metric: str) -> str:
    """Return the field of a metric: its own name, unless that has a meaning of ours."""
    name = str(encodable(metric))
    return f"x_{name}" if name in _TAKEN_NAMES else name


def rows_of(columns: Iterable[tuple[str, Column]], *, apart_s: float = math.inf) -> list[Row]:
    """Return the values of named columns in order; those of a step at most `apart_s` apart share a row.

    A value goes to the row that is nearest in time. Of one metric, each value at a step has a row of its own.
    """
    found: list[Row] = []
    known: dict[tuple[int, str], dict[int | tuple[float], list[Row]]] = {}
    before: list[Row] = []
    last: Column | None = None
    # What has times before what has none, and the longest first: a row has the time of its first value.
    for name, column in sorted(columns, key=_times_and_length):
        if last is None or not _is_alike(column, last) or any(name in row.fields for row in before):
            of_kind = known.setdefault((column.session, column.kind), {})
            before, last = [], column
            for step, time in zip(column.steps, column.times, strict=True):
                time = time if math.isfinite(time) else -math.inf
                same = of_kind.setdefault(step if step != NO_STEP else (time,), [])
                row = _free(same, name, time, apart_s)
                if row is None:
                    row = Row(column.kind, column.session, step, time)
                    insort(same, row, key=_time_of)
                    found.append(row)
                # Taken, for the next value at this step.
                row.fields[name] = None
                before.append(row)
        for row, value in zip(before, column.values, strict=True):
            row.fields[name] = value
    return in_order(found)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return rows by session and time; one without a time is where its step is among them, else after all others."""
    known: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if row.time > -math.inf and row.step != NO_STEP:
            known.setdefault(row.session, []).append((row.step, row.time))
    for timed in known.values():
        timed.sort()

    def place(row: Row) -> tuple[int, float, int]:
        time = row.time
        if time == -math.inf:
            timed = known.get(row.session, ()) if row.step != NO_STEP else ()
            before = max(bisect_left(timed, (row.step + 1,)) - 1, 0)
            time = timed[before][1] if timed else math.inf
        return row.session, time, row.step

    return sorted(rows, key=place)


def records_in(info: SourceInfo, batch: Batch) -> list[Record]:
    """Return the records of one batch."""
    named = ((field_name(name), column) for name, column in named_columns(info, batch))
    return [row.record() for row in rows_of(named)]


def completions_of(source: RunSource) -> Iterator[Record]:
    """Yield what the model of a run answered, as records."""
    for batch in read_all(source):
        yield from (completion_row(event).record() for event in batch.events if event.kind == COMPLETION)


def completion_row(event: Event) -> Row:
    """Return such an event as a row."""
    row = Row(COMPLETION, event.session, event.step, event.time)
    for given, value in (event.payload or {}).items():
        name = f"x_{given}" if given in RESERVED else given
        row.fields[name] = value
        if type(value) is float and not math.isfinite(value):
            row.fields[name] = None
            row.fields.setdefault(NON_FINITE, {})[name] = name_of_non_finite(value)
    return row


def _times_and_length(named: tuple[str, Column]) -> tuple[bool, int]:
    times = named[1].times
    return not (len(times) and math.isfinite(times[0])), -len(times)


def _is_alike(one: Column, other: Column) -> bool:
    """Return whether two columns have the same places, as those of a table do."""
    # As bytes: a time that is missing is unequal to itself.
    return (
        (one.session, one.kind) == (other.session, other.kind)
        and one.steps == other.steps
        and one.times.tobytes() == other.times.tobytes()
    )


def _free(same: Sequence[Row], name: str, time: float, apart_s: float) -> Row | None:
    """Return the row that is nearest in time of those, sorted by time, that have no such value yet."""
    if len(same) > 1:
        place = bisect_left(same, time, key=_time_of)
        same = same[max(place - 1, 0) : place + _LOOKED_AT]
    found, least = None, apart_s
    for row in same:
        apart = abs(row.time - time) if row.time != time else 0.0
        if name not in row.fields and (apart < least or (apart == least and found is None)):
            found, least = row, apart
    return found
