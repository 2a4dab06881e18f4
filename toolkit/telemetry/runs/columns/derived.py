"""Columns of formulas: computed when asked for, kept, and extended as records come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from toolkit.telemetry.formulas.evaluation import Evaluation, Metrics, Setting
from toolkit.telemetry.formulas.formula import Formula, FormulaError, parse
from toolkit.telemetry.runfolder.records import EPOCH, EVAL
from toolkit.telemetry.runs.columns.run_columns import MetricColumn, RunColumns

_MOST_KEPT: Final = 64
_MOST_BYTES: Final = 400_000_000
"""Formulas of a run that are kept; the one that was asked for longest ago goes first."""
_AT_ONCE: Final = 500_000
"""Operations between two looks at the deadline: some tenths of a second."""
_MOST_OPERATIONS: Final = 50_000_000
"""A formula that takes more is refused: about 20 s of one processor."""


@dataclass(slots=True)
class Derived:
    """The values of a formula, as far as they have been computed."""

    formula: Formula
    values: Evaluation
    column: MetricColumn
    version: int
    """Of the rows, where the formula uses their steps."""
    done: int = 0
    """How many records have been computed."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many values of each metric were in them."""
    computing: threading.Lock = field(default_factory=threading.Lock)
    """Held from `DerivedColumns.given` to `DerivedColumns.add`."""


@dataclass(slots=True)
class Given:
    """Records that are to be computed, by session."""

    parts: list[tuple[bool, Metrics]]
    """Whether a session begins, and its values."""
    done: int
    counts: dict[str, int]


class DerivedColumns:
    """The formulas over the columns of one run; the caller holds the lock of the columns, but not for `compute`."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._kept: dict[str, Derived] = {}

    @property
    def nbytes(self) -> int:
        """Memory used."""
        return sum(kept.column.rows.nbytes + kept.column.values.nbytes for kept in self._kept.values())

    def find(self, text: str, setting: Setting, known: Callable[[], Collection[str]]) -> Derived:
        """Return what is known of a formula. Its column is the same object as long as it only grows.

        Raises:
            FormulaError: it is no formula, this run lacks what it needs, or it would take too long.
        """
        kept = self._kept.pop(text, None)
        if kept is None or not self._only_grew(kept):
            kept = self._new(text, setting, known)
        self._kept[text] = kept
        self._columns.derived[text] = kept.column
        while len(self._kept) > _MOST_KEPT or (len(self._kept) > 1 and self.nbytes > _MOST_BYTES):
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._columns.derived[oldest]
        return kept

    def fraction(self, text: str) -> float:
        """Return how much of a formula has been computed."""
        kept = self._kept.get(text)
        return 1.0 if kept is None else min(1.0, kept.done / max(1, self._columns.rows))

    def given(self, kept: Derived) -> Given | None:
        """Return the next records to compute; None if there are none."""
        at_once = max(1, _AT_ONCE // kept.formula.cost)
        first, last = kept.done, min(self._columns.rows, kept.done + at_once)
        if last <= first:
            return None
        starts = [segment.start for segment in self._columns.segments]
        found = Given([], last, {})
        for start, stop in pairwise([first, *(one for one in starts if first < one < last), last]):
            found.parts.append((start in starts, self._metrics(kept, start, stop, found.counts)))
        return found

    def compute(self, kept: Derived, given: Given) -> list[tuple[list[int], list[float]]]:
        """Return the next values of a formula and their records, by session."""
        found = []
        for is_start, metrics in given.parts:
            if is_start:
                kept.values.restart()
            found.append(kept.values.take(metrics, self._places))
        return found

    def add(self, kept: Derived, given: Given, computed: list[tuple[list[int], list[float]]]) -> None:
        """Add what was computed from what was given."""
        for rows, values in computed:
            if rows:
                kept.column.append(np.array(rows, dtype=np.int32), np.array(values, dtype=np.float64))
        kept.done, kept.counts = given.done, given.counts

    def _new(self, text: str, setting: Setting, known: Callable[[], Collection[str]]) -> Derived:
        formula, columns = parse(text), self._columns
        if not formula.names:
            raise FormulaError("The formula names no metric, so it has a value at no record.")
        if any(name not in columns.metrics for name in formula.names):
            raise FormulaError(formula.unknown(known()) or "Some of its metrics have not been read yet.")
        metrics = [columns.metrics[name] for name in formula.names]
        records = min(columns.rows, sum(len(metric.values) for metric in metrics))
        if formula.cost * records > _MOST_OPERATIONS:
            raise FormulaError(
                f"The formula is too large for this run: {formula.cost} operations at each of {records:,} records, "
                f"where at most {_MOST_OPERATIONS:,} are computed."
            )
        event = next((one.event for one in metrics if one.event not in (EVAL, EPOCH)), metrics[0].event)
        empty = MetricColumn(event, np.empty(0, dtype=np.int32), np.empty(0))
        return Derived(formula, Evaluation(formula, setting), empty, self._version(formula))

    def _version(self, formula: Formula) -> int:
        return self._columns.line_version if formula.all_of("place") else 0

    def _only_grew(self, kept: Derived) -> bool:
        """Return whether no value came at a record that was already read: a store may read metrics one by one."""
        return kept.version == self._version(kept.formula) and all(
            np.searchsorted(self._columns.metrics[name].rows.values, kept.done) == count
            for name, count in kept.counts.items()
        )

    def _metrics(self, kept: Derived, first: int, last: int, counts: dict[str, int]) -> Metrics:
        found = {}
        for name in kept.formula.names:
            column = self._columns.metrics[name]
            start, stop = np.searchsorted(column.rows.values, (first, last)).tolist()
            found[name] = column.rows.values[start:stop].tolist(), column.values.values[start:stop].tolist()
            counts[name] = stop
        return found

    def _places(self, name: str, rows: list[int]) -> list[float]:
        array: Any = getattr(self._columns, name)
        values: list[float] = array.values[rows].tolist()
        return values
