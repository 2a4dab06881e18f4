"""What is kept of the metrics of steps that got no record: the last value, and how far it varied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.runfolder.records import NAN_INF_DETECTED, RESERVED

COLUMNS: Final = (
    *("lr", "grad_norm", "epoch", "samples_per_sec", "sec_per_step"),
    *("gpu_mem_allocated", "gpu_mem_reserved", "cpu_mem_rss_mb"),
)
"""What a row of `FoldedMetrics.rows` holds, in this order; after them come the caller's own metrics."""
WELL_KNOWN: Final = ("train_loss", *COLUMNS)
NONE_GIVEN: Final = (None,) * len(COLUMNS)
PLAIN: Final = frozenset({float, int})
PLAIN_OR_NONE: Final = PLAIN | {type(None)}

MOST_OWN: Final = 32
"""Metrics of the caller's own that a row may hold; a step with more of them is folded at once."""

_MOST_NAMES: Final = 1_000
"""Names that are folded between two records: a script that puts a number into each name would never be done."""
_MOST_VARYING: Final = 256
"""Of so many it is also said how far they varied, or a record would have no room for its own fields."""
_POSITIONS: Final = frozenset({"epoch"})
"""How far the run has got: it varies by nature."""
_LARGEST: Final = 1e300


class FoldedMetrics:
    """The metrics of the steps since the last record.

    A caller's step that is only folded appends one row, of plain numbers and None, and a mapping of plain numbers.
    """

    __slots__ = ("_is_flagged", "name_of_metric", "rows", "sums")

    def __init__(self) -> None:
        self.name_of_metric: Callable[[str], str | None] = _name_of_metric
        """Returns the name that a metric has on a record; None if it is not to be written."""
        self.rows: list[tuple[Any, ...]] = []
        self.sums: dict[str, _Sum] = {}
        self._is_flagged = False

    def add(self, fields: Mapping[str, Any]) -> None:
        """Fold what is a number among the fields of a step."""
        self._sum_up(self._take_rows())
        self._is_flagged = self._is_flagged or fields.get(NAN_INF_DETECTED) is True
        for name, value in fields.items():
            if isinstance(value, (float, int)) and name not in _NOT_FOLDED:
                self._sum(self.name_of_metric(name), (value,), value)

    def take_into(self, record: dict[str, Any]) -> None:
        """Put on `record` what was folded, and begin again.

        A metric that the record does not have gets its last value. One that varied since the last record also gets
        `<name>_min`, `<name>_max` and `<name>_mean`, the record's own value included, unless the caller has a metric
        of that name.
        """
        rows = self._take_rows()
        if self._is_flagged:
            self._is_flagged, record[NAN_INF_DETECTED] = False, True
        self._sum_up(rows)
        sums, self.sums = self.sums, {}
        varying = 0
        for name, folded in sums.items():
            own = record.get(name)
            if own is None:
                record[name] = folded.last
            elif isinstance(own, (float, int)):
                folded.add((own,), own)
            if folded.varies and name not in _POSITIONS and varying < _MOST_VARYING:
                varying += 1
                for ending, value in folded.spread():
                    if name + ending not in sums:
                        record.setdefault(name + ending, value)

    def _take_rows(self) -> list[tuple[Any, ...]]:
        # Another thread may append while this runs: only what was counted is taken away.
        taken = self.rows[:]
        del self.rows[: len(taken)]
        return taken

    def _sum_up(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        *columns, own = zip(*rows, strict=True)
        for name, values in zip(COLUMNS, columns, strict=True):
            if values[0] is None and values.count(None) == len(values):
                continue
            try:
                # Fails where one is None. Looking for None among numbers takes ten times as long.
                total = _total(values)
            except TypeError:
                values = tuple(value for value in values if value is not None)
                total = _total(values)
            self._sum(name, values, total)
        found: dict[str, list[float]] = {}
        for metrics in filter(None, own):
            for name, value in metrics.items():
                if name in found:
                    found[name].append(value)
                else:
                    found[name] = [value]
        for name, several in found.items():
            self._sum(self.name_of_metric(name), several, _total(several))

    def _sum(self, name: str | None, values: Sequence[float], total: float) -> None:
        if name is None:
            return
        known = self.sums.get(name)
        if known is None:
            if len(self.sums) >= _MOST_NAMES:
                return
            known = self.sums[name] = _Sum()
        known.add(values, total)


def _name_of_metric(name: str) -> str:
    # A metric of a name that has a meaning of ours is kept under another, as it is on a record.
    return f"x_{name}" if name in RESERVED else name


_NOT_FOLDED: Final = frozenset({"train_loss", NAN_INF_DETECTED, "global_step", "time", "elapsed"})
"""The loss has fields of its own, and the others are no metrics."""


class _Sum:
    """One metric over several steps."""

    __slots__ = ("count", "high", "last", "low", "total", "varies")

    def __init__(self) -> None:
        self.last: float = 0.0
        self.low: float = math.inf
        self.high: float = -math.inf
        self.total = 0.0
        self.count = 0
        """Of finite values, as is the total."""
        self.varies = False

    def add(self, values: Sequence[float], total: float) -> None:
        self.last = values[-1]
        # Not where one is NaN or infinite, nor where the sum is nearly so.
        if -_LARGEST < total < _LARGEST and -_LARGEST < self.total < _LARGEST:
            low = high = values[0]
            # Counting equal numbers takes a third of the time of looking for the least and the greatest.
            if values.count(low) != len(values):
                low, high = min(values), max(values)
            if low < self.low:
                self.low = low
            # A NaN that came before stays the greatest.
            if self.high == self.high and high > self.high:
                self.high = high
            self.total += total
            self.count += len(values)
        else:
            self._add_odd(values)
        self.varies = self.low != self.high

    def spread(self) -> Iterable[tuple[str, float]]:
        """Return the endings of the fields that say how far it varied, and their values."""
        if self.low < math.inf:
            yield "_min", _number(self.low)
        yield "_max", _number(self.high)
        if self.count:
            yield "_mean", self.total / self.count

    def _add_odd(self, values: Sequence[float]) -> None:
        for given in values:
            value = _as_float(given)
            if value != value:
                self.high = math.nan
                continue
            self.low = min(self.low, value)
            if self.high == self.high:
                self.high = max(self.high, value)
            if math.isfinite(value) and math.isfinite(self.total + value):
                self.total += value
                self.count += 1


def _total(values: Sequence[float]) -> float:
    """Return the sum of numbers. Raises TypeError if one of them is None."""
    try:
        return sum(values)
    except OverflowError:
        # An integer beyond all floats, among floats.
        if None in values:
            raise TypeError("None among the numbers") from None
        return math.inf


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # Python's integers have no end.
        return math.inf if value > 0 else -math.inf


def _number(value: float) -> float:
    return int(value) if type(value) is bool else value
