"""Smooths a curve without lag, and decides which metrics may be smoothed at all."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from toolkit.diagnostics.metric_aliases import LR, VAL_LOSS, signal_of
from toolkit.runfolder.records import EPOCH, EVAL
from toolkit.runs.store import Floats

AUTO_WIDTH: Final = 0.03
"""Half the width of the average for "auto", as a fraction of the visible x range."""
FINEST: Final = 0.0025
"""The least width: the mean of what falls on one pixel or two."""
FEWEST_POINTS: Final = 200
"""With "auto", a shorter curve is not smoothed."""
MAX_STRETCHES: Final = 100
"""A curve that NaN breaks more often than this is not smoothed."""
FOLDED: Final = "steps_folded"
"""The metric that says how many steps a record covers."""
MOST_FOLDED: Final = 1e9

_WORDS: Final = re.compile(r"[a-z]+")
_EVALUATION: Final = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_SCHEDULE: Final = frozenset({"lr", "schedule", "scheduler", "warmup"})
_COUNTERS: Final = frozenset(
    {"epoch", "step", "global_step", "iteration", "steps_folded", "tokens", "num_tokens", "tokens_seen"}
)
_FIRST_LOOK: Final = 4096
_LEAST_NOISE: Final = 5e-4
"""Less noise than this fraction of the value range cannot be seen: such a curve is a schedule."""
_CONSTANT: Final = 1e-9
_LARGEST: Final = 1e200
_NEIGHBOURS: Final = 5
_AROUND: Final = 51
"""Cells from which the usual noise is taken."""
_SPIKE: Final = 4.0
"""So many times the noise of nine in ten cells, and a cell does not count: six deviations of normal noise."""


def may_be_smoothed(name: str, event: str, parts: list[Floats]) -> bool:
    """Return whether smoothing this metric hides noise and nothing else; `parts` are its values by session.

    Evaluations, learning rates, schedules, counters and constants are drawn as they were logged.
    """
    if event in (EVAL, EPOCH) or signal_of(name) in (LR, VAL_LOSS):
        return False
    lower = name.lower()
    words = set(_WORDS.findall(lower))
    if words & _EVALUATION or words & _SCHEDULE or {"learning", "rate"} <= words:
        return False
    if lower.rsplit("/", 1)[-1] in _COUNTERS:
        return False
    return any(_is_noisy(values) for values in parts)


def _is_noisy(values: Floats) -> bool:
    if len(values) < 3 or (_is_monotonic(values[:_FIRST_LOOK]) and _is_monotonic(values)):
        return False
    at = np.linspace(0, len(values) - 3, min(len(values) - 2, _FIRST_LOOK)).astype(np.int64)
    triples = np.stack([values[at], values[at + 1], values[at + 2]])
    triples = triples[:, np.isfinite(triples).all(axis=0)]
    if not triples.shape[1]:
        return False
    low, high = np.percentile(triples[0], (1, 99)).tolist()
    if high - low <= _CONSTANT * max(abs(low), abs(high)):
        # A few values differ from all others: an average would invent values between them.
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        bends = np.abs(triples[0] - 2.0 * triples[1] + triples[2])
    # Of many a noisy metric most values are equal: a fifth of them tells it from a schedule.
    return bool(np.percentile(bends, 80) > _LEAST_NOISE * (high - low))


def _is_monotonic(values: Floats) -> bool:
    finite = values[np.isfinite(values)]
    return bool((finite[1:] >= finite[:-1]).all() or (finite[1:] <= finite[:-1]).all())


def smooth(
    x: Floats, y: Floats, half_width: float, cell: float, weight: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the smoothed curve through finite points with ascending `x`, at most one point in each `cell` of x.

    A local line is fitted around each place, with weights that fall to zero at `half_width`, and at twice that for the
    ends of the curve: nothing lags. A record counts by its `weight`, the steps it covers; a cell far from
    the cells beside it counts less or not at all. Every value lies between the extremes of the logged values it was
    made from. dashboard/components/curves/smooth.js has the same arithmetic.
    """
    if len(x) < 3 or not half_width > 0 or not cell > 0 or x[-1] <= x[0]:
        return x.copy(), y.copy()
    size = float(np.abs(y).max())
    if size > _LARGEST:
        places, values = smooth(x, y / size, half_width, cell, weight)
        return places, values * size
    weight = np.ones(len(x)) if weight is None else weight
    count = int((x[-1] - x[0]) // cell) + 1
    starts = np.searchsorted(x, x[0] + cell * np.arange(count))
    starts[0] = 0
    filled = np.diff(starts, append=len(x)) > 0
    starts = starts[filled]
    weights = np.add.reduceat(weight, starts)
    means = np.add.reduceat(y * weight, starts) / weights
    from_start = np.add.reduceat((x - x[0]) * weight, starts) / weights
    places = from_start / cell
    weights = weights * _trust(means)
    cells = np.zeros((5, count))
    cells[:, filled] = (
        weights,
        weights * places,
        weights * places**2,
        weights * means,
        weights * places * means,
    )
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    trusted = weights > 0
    low[filled] = np.where(trusted, np.minimum.reduceat(y, starts), np.inf)
    high[filled] = np.where(trusted, np.maximum.reduceat(y, starts), -np.inf)
    middle = _fit(cells, low, high, filled, places, half_width / cell)
    # At an end only one side is known: twice the width keeps the line as calm there as elsewhere.
    end = _fit(cells, low, high, filled, places, 2 * half_width / cell)
    known = np.isfinite(middle) & np.isfinite(end)
    share = np.clip(np.minimum(from_start, x[-1] - x[0] - from_start) / half_width, 0.0, 1.0)
    return x[0] + from_start[known], (share * middle + (1.0 - share) * end)[known]


def _trust(means: Floats) -> Floats:
    """Return Tukey's weight of each cell: 1 where it is like its neighbours, 0 for a spike of a cell or two.

    A step or a slope moves the median of five with it, so that it is no spike. At either end nothing tells them apart.
    """
    count = len(means)
    if count < _NEIGHBOURS:
        return np.ones(count)
    apart = np.zeros(count)
    beside = np.lib.stride_tricks.sliding_window_view(means, _NEIGHBOURS)
    apart[2:-2] = np.abs(means[2:-2] - np.median(beside, axis=1))
    size = min(_AROUND, count)
    windows = np.lib.stride_tricks.sliding_window_view(apart, size)
    # Nine of ten are nearer than this: what a tenth of the values do is noise, whatever its distribution.
    usual = np.partition(windows, int(0.9 * (size - 1)), axis=1)[:, int(0.9 * (size - 1))]
    limit = _SPIKE * usual[np.clip(np.arange(count) - size // 2, 0, count - size)]
    ratio = np.divide(apart, limit, out=np.zeros(count), where=limit > 0)
    return np.asarray((1.0 - np.minimum(ratio, 1.0) ** 2) ** 2)


def _fit(
    cells: Floats,
    low: Floats,
    high: Floats,
    filled: npt.NDArray[np.bool_],
    places: Floats,
    half_width: float,
) -> Floats:
    """Return a local line's value in each filled cell, never beyond the extremes that it was made from."""
    count = len(low)
    reach = min(max(int(half_width), 1), count)
    kernel = (1.0 - np.minimum(np.abs(np.arange(-reach, reach + 1)) / half_width, 1.0) ** 2) ** 2
    w, wx, wxx, t0, ty = (np.convolve(one, kernel)[reach : reach + count][filled] for one in cells)
    s1, s2, t1 = wx - places * w, wxx - 2 * places * wx + places**2 * w, ty - places * t0
    determinant = w * s2 - s1 * s1
    with np.errstate(invalid="ignore", divide="ignore"):
        line = (s2 * t0 - s1 * t1) / determinant
        found = np.where(determinant > 1e-9 * w * s2, line, t0 / w)
    return np.clip(found, _lowest(low, reach)[filled], -_lowest(-high, reach)[filled])


def _lowest(values: Floats, reach: int) -> Floats:
    padded = np.concatenate((np.full(reach, np.inf), values, np.full(reach, np.inf)))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).min(axis=1))
