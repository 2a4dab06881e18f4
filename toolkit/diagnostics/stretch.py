"""Consecutive step records with the same fields, as columns: most of a run can be examined without a row each."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter, lt
from typing import Final

from toolkit.diagnostics.metric_aliases import FARTHEST, Row, Shape
from toolkit.runfolder.records import STEP, Record

SHORTEST: Final = 8
"""Fewer records are examined one by one: columns would cost more than they save."""
LONGEST: Final = 512
"""A record that needs a closer look, such as a NaN, takes away the columns of so many others."""

_STEP_OF: Final = itemgetter("global_step")
_EVENT_OF: Final = itemgetter("event")
_ELAPSED: Final = "elapsed"


class Stretch:
    """Step records of rank 0 with rising steps, in which every signal is finite."""

    __slots__ = ("_ranges", "_row", "_rows", "columns", "elapsed", "first_row", "records", "steps")

    def __init__(
        self,
        records: Sequence[Record],
        steps: list[int],
        columns: dict[str, list[float]],
        elapsed: list[float] | None,
        row: Row,
    ) -> None:
        self.records = records
        self.steps = steps
        self.columns = columns
        """The values of each signal; one that no record has is missing."""
        self.elapsed = elapsed
        """The times of the records by the run's own clock, if all have one."""
        self.first_row = 0
        """How many records of the run come before it."""
        self._row = row
        self._rows: dict[int, Row] = {}
        self._ranges: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.records)

    def range_of(self, signal: str) -> tuple[float, float]:
        """Return the lowest and the highest value of a signal that it has."""
        found = self._ranges.get(signal)
        if found is None:
            column = self.columns[signal]
            found = self._ranges[signal] = (min(column), max(column))
        return found

    def row(self, place: int) -> Row:
        """Return one record, as `Detector.take` reads it."""
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = self._row.with_the_same_shapes()
            row.read(self.records[place], 0)
        return row


def stretch_of(records: Sequence[Record], shape: Shape, row: Row, *, after: int) -> Stretch | None:
    """Return `records`, which have the fields of `shape`, as columns; None if they must be examined one by one.

    `after` is the last step before them.
    """
    count = len(records)
    steps = list(map(_STEP_OF, records))
    if (
        list(map(_EVENT_OF, records)).count(STEP) != count
        or set(map(type, steps)) != {int}
        or not after < steps[0]
        or not steps[-1] < FARTHEST
        or not all(map(lt, steps, steps[1:]))
    ):
        return None
    columns: dict[str, list[float]] = {}
    for name, signal in shape.fields:
        if signal in columns:
            continue
        column = [record[name] for record in records]
        types = set(map(type, column))
        if types != {float}:
            if float not in types and int not in types:
                continue
            if types != {float, int} and types != {int}:
                return None
            if not -FARTHEST < min(column) <= max(column) < FARTHEST:
                return None
            column = list(map(float, column))
        convert = Row.conversion_of(name)
        if convert is not None:
            column = [convert(value, record) for value, record in zip(column, records, strict=True)]
        total = sum(column)
        if total - total != 0.0:
            return None
        columns[signal] = column
    elapsed = None
    if shape.has_elapsed:
        elapsed = [record[_ELAPSED] for record in records]
        if set(map(type, elapsed)) != {float} or (total := sum(elapsed)) - total != 0.0:
            elapsed = None
    return Stretch(records, steps, columns, elapsed, row)
