"""A metric over a group of runs: one line and a band, at common x positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from toolkit.telemetry.runs.store import Floats

Statistic = Literal["mean", "median", "range"]
"""Mean and one standard deviation, median and quartiles, or mean, minimum and maximum."""
_POINTS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurve:
    """What a group of runs shows at each x."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats

    def minus(self, base: GroupCurve) -> GroupCurve:
        """Return its distance from the line of `base` at the same x, where `base` has one; the band stays its own."""
        inside = (
            (self.x >= base.x[0]) & (self.x <= base.x[-1]) if len(base.x) else np.zeros(len(self.x), bool)
        )
        level = np.interp(self.x[inside], base.x, base.y) if inside.any() else np.empty(0)
        y, low, high = (values[inside] - level for values in (self.y, self.low, self.high))
        return GroupCurve(x=self.x[inside], y=y, low=low, high=high)


def group_curve(curves: Sequence[tuple[Floats, Floats]], statistic: Statistic = "mean") -> GroupCurve:
    """Return the line and the band over `curves`, x and y of each; each counts from its first to its last x.

    Values between two points are interpolated; NaN and infinity are left out. One curve stays as it is, without a band.
    """
    known = [_finite(x, y) for x, y in curves]
    known = [(x, y) for x, y in known if len(x)]
    if len(known) < 2:
        x, y = known[0] if known else (np.empty(0), np.empty(0))
        return GroupCurve(x=x, y=y, low=y, high=y)
    first, last = min(float(x[0]) for x, _ in known), max(float(x[-1]) for x, _ in known)
    places = np.unique(np.linspace(first, last, _POINTS))
    rows = np.full((len(known), len(places)), np.nan)
    for number, (x, y) in enumerate(known):
        inside = (places >= x[0]) & (places <= x[-1])
        rows[number, inside] = np.interp(places[inside], x, y)
    some = np.isfinite(rows).any(axis=0)
    rows, places = rows[:, some], places[some]
    if statistic == "median":
        low, middle, high = np.nanpercentile(rows, [25, 50, 75], axis=0)
    else:
        middle = np.nanmean(rows, axis=0)
        # Of a sample, as everywhere else: with a few seeds the other one is too small.
        number = np.isfinite(rows).sum(axis=0)
        spread = np.nanstd(rows, axis=0) * np.sqrt(number / np.maximum(number - 1, 1))
        low, high = middle - spread, middle + spread
        if statistic == "range":
            low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
    return GroupCurve(x=places, y=middle, low=low, high=high)


def _finite(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[known], kind="stable")
    return x[known][order], y[known][order]
