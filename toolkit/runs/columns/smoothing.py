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


def smooth(x: Floats, y: Floats, half_width: float, cell: float) -> tuple[Floats, Floats]:
    """Return the smoothed curve through finite points with ascending `x`, at most one point in each `cell` of x.

    A local line is fitted around each place, with weights that fall to zero at `half_width`, and at twice that for the
    ends of the curve: nothing lags. Every value lies between the extremes of the logged values it was made from.
    """
    if len(x) < 3 or not half_width > 0 or not cell > 0 or x[-1] <= x[0]:
        return x.copy(), y.copy()
    size = float(np.abs(y).max())
    if size > _LARGEST:
        places, values = smooth(x, y / size, half_width, cell)
        return places, values * size
    count = int((x[-1] - x[0]) // cell) + 1
    starts = np.searchsorted(x, x[0] + cell * np.arange(count))
    starts[0] = 0
    weights = np.diff(starts, append=len(x)).astype(np.float64)
    filled = weights > 0
    starts = starts[filled]
    sums, low, high = np.zeros(count), np.full(count, np.inf), np.full(count, -np.inf)
    sums[filled] = np.add.reduceat(y, starts)
    low[filled] = np.minimum.reduceat(y, starts)
    high[filled] = np.maximum.reduceat(y, starts)
    places = x[0] + np.add.reduceat(x - x[0], starts) / weights[filled]
    middle = _fit(sums, weights, low, high, filled, half_width / cell)
    # At an end only one side is known: twice the width keeps the line as calm there as elsewhere.
    end = _fit(sums, weights, low, high, filled, 2 * half_width / cell)
    share = np.minimum(np.minimum(places - x[0], x[-1] - places) / half_width, 1.0)
    return places, share * middle + (1.0 - share) * end


def _fit(
    sums: Floats, weights: Floats, low: Floats, high: Floats, filled: npt.NDArray[np.bool_], half_width: float
) -> Floats:
    """Return a local line's value in each filled cell, never beyond the extremes that it was made from."""
    count = len(sums)
    reach = min(max(int(half_width), 1), count)
    offsets = np.arange(-reach, reach + 1)
    kernel = (1.0 - np.minimum(np.abs(offsets) / half_width, 1.0) ** 2) ** 2

    def around(values: Floats, power: int) -> Floats:
        weighted = np.convolve(values, kernel * np.power(-1.0 * offsets, power))
        return np.asarray(weighted[reach : reach + count][filled])

    s0, s1, s2 = (around(weights, power) for power in (0, 1, 2))
    t0, t1 = (around(sums, power) for power in (0, 1))
    determinant = s0 * s2 - s1 * s1
    with np.errstate(invalid="ignore", divide="ignore"):
        line = (s2 * t0 - s1 * t1) / determinant
    found = np.where(determinant > 1e-9 * s0 * s2, line, t0 / s0)
    return np.clip(found, _lowest(low, reach)[filled], -_lowest(-high, reach)[filled])


def _lowest(values: Floats, reach: int) -> Floats:
    padded = np.concatenate((np.full(reach, np.inf), values, np.full(reach, np.inf)))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).min(axis=1))
