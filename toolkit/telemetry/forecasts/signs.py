"""What a curve and its schedule say about its end: several simple forecasts, and how hard it is to forecast.

All numbers are in units of the curve's range so far and relative to its recent level, so neither the unit nor the
offset of a loss matters.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from toolkit.telemetry.diagnostics.robust import CHANGE_TO_SIGMA
from toolkit.telemetry.forecasts.schedule import since_jump
from toolkit.telemetry.forecasts.series import Curve, Floats, Plan

_GROUPS = 40
_EXPONENTS = np.array([0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5])
_RATES = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
"""Of an exponential, per length of the curve so far."""
_FURTHEST = 1.5
"""No simple forecast moves further from the recent level, in ranges: a fit may explode."""
SMALLEST = 0.003
"""Differences below this share of the range count as equal."""
_FAR = 4.0
"""A fit counts a group's distance up to so many times the typical one."""

_HELD = 0.98
"""A rate above this share of its highest has not begun to fall."""

_OF_NOISE = 2.0
"""Standard deviations that noise alone moves the final value by."""

MOVES = 4
"""How many of the simple forecasts the middle is made of: the first ones."""


@dataclass(frozen=True)
class Signs:
    """One curve up to now, in its own units."""

    level: float
    """The recent value of the metric."""
    unit: float
    """The range so far, with the noise; since the learning rate jumped, if it did."""
    reach: float
    """The range of all records, in `unit`s."""
    done: float
    """Share of the planned steps."""
    moves: Floats
    """Where each simple forecast ends, relative to `level` and in `unit`s."""
    path: Floats
    """The first of them at the steps asked for, in the metric's own values."""
    fall: float
    """The share of the highest learning rate by which the rate will still fall; 0 if it is not known."""
    known: bool
    """Whether the rest of the schedule is known."""
    held: float
    """The share by which a rate that is at its highest now will fall, or may where that is not known."""
    improved: float
    """From the first values to the recent level."""
    rise: float
    """The largest rise within the later half."""
    back: float
    """The change since half of the records ago."""
    noise: float
    """By how much the noise of single records moves the final value, which is the median of a few of them."""

    def places(self) -> Floats:
        """Return what the middle of a forecast is a weighted sum of."""
        return np.array(
            [*self.moves[:MOVES], self.fall * self.improved, self.fall * np.mean(self.moves[:MOVES])]
        )

    def difficulty(self, middle: float) -> Floats:
        """Return what the logarithm of a forecast's usual miss is a weighted sum of."""
        sizes = np.array(
            [
                np.std([*self.moves, 0.0]),
                abs(middle),
                self.rise,
                abs(self.back),
                abs(self.moves[0] - self.moves[2]),
            ]
        )
        left = np.log(max(1.0 - self.done, 0.02))
        return np.array([1.0, *np.log(sizes + SMALLEST), left, float(self.known)])

    def usual_miss(self, predicted: float) -> float:
        """Return the usual miss, with what noise alone adds to the one that was predicted."""
        return float(np.hypot(predicted, _OF_NOISE * self.noise))


def signs_of(curve: Curve, plan: Plan, ahead: Floats) -> Signs:
    """Look at `curve`, which has at least 15 records, and at the rest of its `plan`, which has a last step."""
    assert plan.last_step is not None
    whole = float(np.ptp(_medians(curve.values)))
    curve, plan = since_jump(curve, plan)
    end, lr, planned_lr = float(plan.last_step or 0), plan.lr, plan.planned_lr
    steps, values = curve.steps, curve.values
    count = len(values)
    spacing = max(float(np.median(np.diff(steps))), 1e-12 * abs(end))
    begin = float(steps[0]) - spacing
    now, last = float(steps[-1]) - begin, end - begin
    times = np.array([steps[group].mean() for group in _groups(count)]) - begin
    medians = _medians(values)
    level = float(np.median(values[-max(3, count // 10) :]))
    unit = float(np.ptp(medians)) + noise_of(values)
    unit = max(unit, 1e-9 * float(np.max(np.abs(values))), 1e-300)
    heights = (medians - level) / unit
    half = len(heights) // 2
    later = heights[half:]
    moves, path = _simple_forecasts(times, heights, now, last, ahead - begin)
    fall = held = 0.0
    if lr is not None and len(lr.values) and (highest := float(np.max(lr.values))) > 0:
        if planned_lr is not None:
            fall = float(planned_lr.values[0] - planned_lr.values[-1]) / highest
        if lr.values[-1] >= _HELD * highest:
            held = 1.0 if planned_lr is None else fall
    return Signs(
        level=level,
        unit=unit,
        reach=max(1.0, whole / unit),
        done=now / last,
        moves=moves,
        path=level + unit * path,
        fall=fall,
        known=planned_lr is not None,
        held=held,
        improved=float((np.median(values[: max(2, count // 20)]) - level) / unit),
        rise=float(np.max(later - np.minimum.accumulate(later))),
        back=-float(np.median(heights[:half][-max(2, half // 8) :])),
        noise=noise_of(values) / unit / float(np.sqrt(max(1.0, 0.05 * count * last / now))),
    )


def _groups(count: int) -> list[slice]:
    edges = np.linspace(0, count, min(_GROUPS, count) + 1).astype(int)
    return [slice(first, end) for first, end in itertools.pairwise(edges)]


def _medians(values: Floats) -> Floats:
    return np.array([np.median(values[group]) for group in _groups(len(values))])


def noise_of(values: Floats) -> float:
    """Return the standard deviation of a record around its neighbours."""
    return CHANGE_TO_SIGMA * float(np.median(np.abs(np.diff(values))))


def _simple_forecasts(
    times: Floats, heights: Floats, now: float, last: float, ahead: Floats
) -> tuple[Floats, Floats]:
    """Return where each simple forecast ends, and the first of them at the times `ahead`."""
    ones = np.ones_like(times)
    later = len(times) // 3
    powers = (times / now)[:, None] ** -_EXPONENTS
    end_powers = (last / now) ** -_EXPONENTS
    # A power law with an offset: through all, through the later two thirds, and with more weight on what is recent.
    offset, slope, cost = _fit(powers, heights, ones)
    best = int(np.argmin(cost))
    path = offset[best] + slope[best] * (ahead / now) ** -_EXPONENTS[best]
    whole = offset[best] + slope[best] * end_powers[best]
    offset, slope, cost = _fit(powers[later:], heights[later:], ones[later:])
    ends = offset + slope * end_powers
    two_thirds = ends[int(np.argmin(cost))]
    weight = (max(float(cost.min()), 1e-300) / np.maximum(cost, 1e-300)) ** 4
    average = float(np.sum(weight * ends) / np.sum(weight))
    offset, slope, cost = _fit(powers, heights, np.linspace(0.1, 1.0, len(times)) ** 2)
    recent = (offset + slope * end_powers)[int(np.argmin(cost))]
    # An exponential with an offset.
    offset, slope, cost = _fit(np.exp(-times[later:, None] / now * _RATES), heights[later:], ones[later:])
    exponential = (offset + slope * np.exp(-last / now * _RATES))[int(np.argmin(cost))]
    # A straight line over the logarithm of the steps, from three points in time on.
    logs = np.log(times / now)[:, None]
    lines = []
    for share in (0.25, 0.5, 0.75):
        first = max(min(int(np.searchsorted(times, share * now)), len(times) - 4), 0)
        offset, slope, _ = _fit(logs[first:], heights[first:], ones[first:])
        lines.append(float(offset[0] + slope[0] * np.log(last / now)))
    moves = np.array([whole, two_thirds, recent, exponential, *lines, average])
    return np.clip(np.nan_to_num(moves), -_FURTHEST, _FURTHEST), np.nan_to_num(path)


def _fit(shapes: Floats, heights: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit height = offset + slope * shape for each column; groups far from the fit lose weight.

    Returns the offsets, the slopes, and how badly each shape fits.
    """
    weight = np.repeat(weights[:, None], shapes.shape[1], axis=1)
    target = heights[:, None]
    floor = 1e-9 * (float(np.ptp(heights)) + 1e-9)
    for _ in range(4):
        total = weight.sum(axis=0)
        shape_mean = (weight * shapes).sum(axis=0) / total
        height_mean = (weight * target).sum(axis=0) / total
        around = shapes - shape_mean
        spread = (weight * around * around).sum(axis=0)
        slope = (weight * around * (target - height_mean)).sum(axis=0) / np.where(spread > 0, spread, 1.0)
        offset = height_mean - slope * shape_mean
        miss = np.abs(target - offset - slope * shapes)
        typical = np.median(miss, axis=0) + floor
        weight = weights[:, None] / (1.0 + (miss / (2.0 * typical)) ** 2)
    return offset, slope, (weights[:, None] * np.minimum(miss, _FAR * typical)).sum(axis=0)
