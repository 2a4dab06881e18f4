"""Mean and spread over a group of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dashboard.data.run_store import Floats, Series

_PLACES: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A metric over several runs, at the same places of the axis."""

    x: Floats
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    runs: Floats
    """How many runs have reached each place."""


def mean_and_spread(series: Sequence[Series]) -> Group:
    """Return the mean over `series` at places where at least one of them is, each counted from its first to its last x.

    Between two logged points a run is taken as a straight line. Values that are no number are left out.
    """
    curves = [_curve(one) for one in series]
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        empty = np.empty(0)
        return Group(x=empty, mean=empty, deviation=empty, low=empty, high=empty, runs=empty)
    first, last = min(float(x[0]) for x, _ in curves), max(float(x[-1]) for x, _ in curves)
    places = np.unique(np.linspace(first, last, _PLACES))
    rows = np.full((len(curves), len(places)), np.nan)
    for number, (x, y) in enumerate(curves):
        inside = (places >= x[0]) & (places <= x[-1])
        rows[number, inside] = np.interp(places[inside], x, y)
    known = np.isfinite(rows)
    runs = known.sum(axis=0).astype(np.float64)
    some = runs > 0
    rows, places, runs = rows[:, some], places[some], runs[some]
    mean = np.nanmean(rows, axis=0)
    return Group(
        x=places,
        mean=mean,
        deviation=np.nanstd(rows, axis=0),
        low=np.nanmin(rows, axis=0),
        high=np.nanmax(rows, axis=0),
        runs=runs,
    )


def _curve(series: Series) -> tuple[Floats, Floats]:
    if not series.pieces:
        return np.empty(0), np.empty(0)
    x = np.concatenate([piece.x for piece in series.pieces])
    y = np.concatenate([piece.y for piece in series.pieces])
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]
