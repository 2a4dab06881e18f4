"""Consecutive step records with the same fields, as columns: most of a run can be examined without a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import Any, Final, TypeVar

from toolkit.telemetry.diagnostics.metric_aliases import (
    FARTHEST,
    Row,
    Shape,
    in_the_unit_of_its_signal,
)
from toolkit.telemetry.runfolder.records import STEP, Run

SHORTEST: Final = 8
"""Fewer records are examined one by one: columns would cost more than they save."""
LONGEST: Final = 512
"""A record that needs a closer look, such as a NaN, takes away the columns of so many others."""

_ELAPSED: Final = "elapsed"
_ONLY_FLOAT: Final = {float}
_ONLY_INT: Final = {int}

_T = TypeVar("_T")


class StepBatch:
    """Step records of rank 0 with rising steps, in which every signal is finite."""

    __slots__ = (
        "_made",
        "_row",
        "_rows",
        "columns",
        "elapsed",
        "fields",
        "first_row",
        "records",
        "steps",
    )

    def __init__(
        self,
        run: Run,
        columns: Mapping[str, Sequence[float]],
        elapsed: Sequence[float] | None,
        row: Row,
    ) -> None:
        self.records = run.records
        self.fields = run.columns
        """The values of each field, whatever they are."""
        self.steps: Sequence[int] = run.columns["global_step"]
        self.columns = columns
        """The values of each signal; one that no record has is missing."""
        self.elapsed = elapsed
        """The times of the records by the run's own clock, if all have one."""
        self.first_row = 0
        """How many records of the run come before it."""
        self._row = row
        self._rows: dict[int, Row] = {}
        self._made: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.records)

    def range_of(self, signal: str) -> tuple[float, float]:
        """Return the lowest and the highest value of a signal that it has."""
        found: tuple[float, float] | None = self._made.get(signal)
        if found is None:
            values = self.columns[signal]
            found = self._made[signal] = min(values), max(values)
        return found

    @property
    def times(self) -> tuple[float, float]:
        """The earliest and the latest of the times, which all records have."""
        return self.once(_range_of_elapsed)

    def once(self, make: Callable[[StepBatch], _T]) -> _T:
        """Return `make(self)`, made once: a detector comes back after each record that needs a closer look."""
        found = self._made.get(make)
        if found is None:
            found = self._made[make] = make(self)
        made: _T = found
        return made

    def row(self, place: int) -> Row:
        """Return one record, as `Detector.take` reads it."""
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = self._row.with_the_same_shapes()
            row.read(self.records[place], 0)
        return row


def batch_of(run: Run, shape: Shape, row: Row, *, after: int) -> StepBatch | None:
    """Return a run, whose records have the fields of `shape`, as columns; None if they must be examined one by one.

    `after` is the last step before them.
    """
    fields = run.columns
    steps = fields["global_step"]
    if (
        fields["event"].count(STEP) != len(run.records)
        or set(map(type, steps)) != _ONLY_INT
        or not after < steps[0]
        or not steps[-1] < FARTHEST
        or not all(map(lt, steps, steps[1:]))
    ):
        return None
    columns: dict[str, Sequence[float]] = {}
    for name, signal in shape.fields:
        if signal in columns:
            continue
        column = fields[name]
        types = set(map(type, column))
        if types != _ONLY_FLOAT:
            if float not in types and int not in types:
                continue
            if types != {float, int} and types != _ONLY_INT:
                return None
            if not -FARTHEST < min(column) <= max(column) < FARTHEST:
                return None
            column = list(map(float, column))
        column = in_the_unit_of_its_signal(name, column, run.records)
        total = sum(column)
        if total - total != 0.0:
            return None
        columns[signal] = column
    elapsed = None
    if shape.has_elapsed:
        elapsed = fields[_ELAPSED]
        if set(map(type, elapsed)) != _ONLY_FLOAT or (total := sum(elapsed)) - total != 0.0:
            elapsed = None
    return StepBatch(run, columns, elapsed, row)


def _range_of_elapsed(batch: StepBatch) -> tuple[float, float]:
    assert batch.elapsed is not None
    return min(batch.elapsed), max(batch.elapsed)
