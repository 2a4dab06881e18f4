"""Columns of formulas: computed when asked for, kept, and extended as records come."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from toolkit.formulas.evaluation import Evaluation, Setting
from toolkit.formulas.formula import Formula, FormulaError, parse
from toolkit.runfolder.records import EPOCH, EVAL
from toolkit.runs.columns.run_columns import MetricColumn, RunColumns

_MOST_KEPT: Final = 32
"""Formulas of a run, each as large as a metric; the one that was asked for longest ago goes first."""
_AT_ONCE: Final = 20_000
"""Records computed without letting others at the columns: a few hundredths of a second."""


@dataclass(slots=True)
class _Derived:
    formula: Formula
    values: Evaluation
    column: MetricColumn
    version: int
    """Of the rows, where the formula uses their steps."""
    done: int = 0
    """How many records have been computed."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many values of each metric were in them."""


class DerivedColumns:
    """The formulas over the columns of one run; the caller holds the lock of the columns."""

    def __init__(self, columns: RunColumns) -> None:
        self._columns = columns
        self._kept: dict[str, _Derived] = {}

    @property
    def nbytes(self) -> int:
        """Memory used."""
        return sum(kept.column.rows.nbytes + kept.column.values.nbytes for kept in self._kept.values())

    def extend(
        self, text: str, setting: Setting, known: Callable[[], Collection[str]]
    ) -> tuple[MetricColumn, bool]:
        """Return the column of a formula, and whether it is complete: if not, some records more were computed.

        It is the same object as long as it only grows.

        Raises:
            FormulaError: it is no formula, or this run lacks what it needs.
        """
        columns = self._columns
        kept = self._kept.pop(text, None)
        if kept is None or not self._only_grew(kept):
            kept = self._new(text, setting, known)
        self._kept[text] = kept
        columns.derived[text] = kept.column
        while len(self._kept) > _MOST_KEPT:
            oldest = next(iter(self._kept))
            del self._kept[oldest], columns.derived[oldest]
        first, last = kept.done, min(columns.rows, kept.done + _AT_ONCE)
        starts = [segment.start for segment in columns.segments]
        for start, stop in pairwise([first, *(one for one in starts if first < one < last), last]):
            if start in starts:
                kept.values.restart()
            rows, values = kept.values.take(self._metrics(kept, start, stop), self._places)
            if rows:
                kept.column.append(np.array(rows, dtype=np.int32), np.array(values, dtype=np.float64))
        kept.done = last
        return kept.column, last == columns.rows

    def _new(self, text: str, setting: Setting, known: Callable[[], Collection[str]]) -> _Derived:
        formula, columns = parse(text), self._columns
        if not formula.names:
            raise FormulaError("The formula names no metric, so it has a value at no record.")
        if any(name not in columns.metrics for name in formula.names):
            raise FormulaError(formula.unknown(known()) or "Some of its metrics have not been read yet.")
        events = [columns.metrics[name].event for name in formula.names]
        event = next((one for one in events if one not in (EVAL, EPOCH)), events[0])
        empty = MetricColumn(event, np.empty(0, dtype=np.int32), np.empty(0))
        return _Derived(formula, Evaluation(formula, setting), empty, self._version(formula))

    def _version(self, formula: Formula) -> int:
        return self._columns.line_version if formula.all_of("place") else 0

    def _only_grew(self, kept: _Derived) -> bool:
        """Return whether no value came at a record that was already read: a store may read metrics one by one."""
        return kept.version == self._version(kept.formula) and all(
            np.searchsorted(self._columns.metrics[name].rows.values, kept.done) == count
            for name, count in kept.counts.items()
        )

    def _metrics(self, kept: _Derived, first: int, last: int) -> dict[str, tuple[list[int], list[float]]]:
        found = {}
        for name in kept.formula.names:
            column = self._columns.metrics[name]
            start, stop = np.searchsorted(column.rows.values, (first, last)).tolist()
            found[name] = column.rows.values[start:stop].tolist(), column.values.values[start:stop].tolist()
            kept.counts[name] = stop
        return found

    def _places(self, name: str, rows: list[int]) -> list[float]:
        array: Any = getattr(self._columns, name)
        values: list[float] = array.values[rows].tolist()
        return values
