"""An axis of a chart: its range, its ticks, and where a value is on it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolkit.runs.formatting import short_number

_PADDING: Final = 0.05
_LARGEST: Final = sys.float_info.max
_LOG_FROM: Final = 8.0
"""A curve whose highest value is this many times its median is drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return where `value` is, from 0 at the low end to 1."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        # Halved, so that the range of two huge numbers is not infinite.
        span = self.high / 2 - self.low / 2
        return (value / 2 - self.low / 2) / span if span else 0.5

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Return round values inside the range and their labels."""
        found = _log_ticks(self.low, self.high, most) if self.log else []
        if len(found) < 2:
            found = _linear_ticks(self.low, self.high, most)
        return [(value, tick_text(value)) for value in found if self.low <= value <= self.high]


def x_axis(values: Sequence[float]) -> Axis:
    """Return an axis that ends where the values do."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        return Axis(low - 1.0, high + 1.0) if abs(low) < 1e15 else _around(low)
    return Axis(low, high)


def y_axis(values: Sequence[float], *, from_zero: bool = False) -> Axis:
    """Return an axis for finite `values` that shows all of them; logarithmic if a few are far above the others."""
    if not values:
        return Axis(0.0, 1.0)
    low, high = min(values), max(values)
    if low == high:
        return Axis(0.0, 1.0) if low == 0.0 and from_zero else _around(low)
    if low > 0 and high > _LOG_FROM * sorted(values)[len(values) // 2]:
        edge = (high / low) ** _PADDING if high / low < 1e300 else 10.0
        return Axis(low / edge or low, high * edge if high * edge < math.inf else high, log=True)
    if from_zero and low >= 0:
        return Axis(0.0, high * (1 + _PADDING) if high < 1e307 else high)
    padding = _PADDING * (high / 2 - low / 2) * 2
    if not math.isfinite(padding) or abs(low) > 1e307 or abs(high) > 1e307:
        padding = 0.0
    return Axis(low - padding, high + padding)


def tick_text(value: float) -> str:
    """Return a label: 12k, 1.5M, 1e-4."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if size * (10 if unit == "k" else 1) <= abs(value) < 1000 * size:
            return f"{value / size:.4g}{unit}"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return short_number(value)


def _around(value: float) -> Axis:
    """Return a range with `value` in its middle."""
    half = abs(value) / 2
    if half < 1e-300:
        return Axis(-1.0, 1.0)
    return Axis(max(value - half, -_LARGEST), min(value + half, _LARGEST))


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    span = high / most - low / most
    if span <= 0 or not math.isfinite(span):
        return [low, high]
    size = 10.0 ** math.floor(math.log10(span))
    step = next((size * factor for factor in (1, 2, 5, 10) if size * factor >= span * 0.999), size * 10)
    if step <= 0 or low / step > 1e15 or high / step > 1e15:
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    # A multiple of the step, rounded to its digits: 0.30000000000000004 has too many.
    digits = max(0, -math.floor(math.log10(step)))
    return [
        round(number * step, digits) if digits < 300 else number * step
        for number in range(first, first + most + 2)
    ]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / most))
    decades = [10.0**power for power in range(first, last + 1, every) if -300 < power < 300]
    inside = [value for value in decades if low <= value <= high]
    if len(inside) >= 3 or every > 1:
        return inside
    finer = [factor * value for value in decades for factor in (1, 2, 5)]
    return [value for value in finer if low <= value <= high]
