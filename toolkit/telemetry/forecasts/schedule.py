"""The rest of a learning-rate schedule, from a run's settings and the learning rates recorded so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from toolkit.telemetry.forecasts.series import Curve, Floats, Plan

_TOLERANCE = 0.02
"""A recorded learning rate may differ from its schedule by this share of the highest one."""

_POINTS = 60
_WARM = 0.9
"""Above this share of its highest value a rate is warmed up."""
_JUMP = 0.4
_ALONE = 5.0
_NOTHING = 1e-4
"""Below this share of the highest rate all rates are alike."""

_NAMES_A_SCHEDULE = re.compile(r"^(?!.*noise).*(sched|lr_decay_style)")
_SHAPES: tuple[Callable[[Floats], Floats], ...] = (
    lambda done: 0.5 * (1.0 + np.cos(np.pi * done)),
    lambda done: 1.0 - done,
    lambda done: (1.0 - done) ** 2,
    lambda done: 1.0 - np.sqrt(done),
)
"""The share of the fall that is left when so much of it is done: a cosine, a line, a square and a root."""

_STAYS = re.compile(r"(?<!piecewise_)constant")
_HELD_AND_FALLING = ("wsd", "stable", "cooldown", "cool_down", "trapez")
_FALLS_OVER = 0.1
"""The share of the steps in which such a rate usually falls; only where it ends counts in a forecast."""


def rest_of_schedule(
    lr: Curve | None, last_step: int | None, settings: Mapping[str, object] | None = None
) -> Curve | None:
    """Return the learning rates from the last recorded one to `last_step`, or None if they are not known.

    A schedule counts as known if the rates recorded since the warm-up follow one shape that ends at `last_step`
    (cosine, linear, a power), or fall in equal steps. A rate that has been constant says nothing of what comes: it is
    known where `settings` name a schedule that stays, or one that is held and falls in the end.
    """
    if lr is None or last_step is None or len(lr.steps) < 5 or lr.steps[-1] >= last_step:
        return None
    peak = float(np.max(lr.values))
    if peak <= 0:
        return None
    since = int(len(lr.values) - 1 - np.argmax(lr.values[::-1] >= peak * (1 - 1e-6)))
    first = int(np.argmax(lr.values >= peak * (1 - 1e-6)))
    rest = np.linspace(lr.steps[-1], last_step, _POINTS)
    if lr.values[-1] >= peak * (1 - 1e-6):
        # As transformers, diffusers, torch, Lightning and Megatron call it.
        known = (settings or {}).items()
        named = " ".join(str(value).lower() for key, value in known if _NAMES_A_SCHEDULE.search(key.lower()))
        if any(word in named for word in _HELD_AND_FALLING):
            return Curve(rest, peak * np.clip((last_step - rest) / (_FALLS_OVER * last_step), 0.0, 1.0))
        return Curve(rest, np.full(_POINTS, peak)) if _STAYS.search(named) else None
    return _decay(lr, since, first, peak, float(last_step), rest) or _stairs(lr, first, rest)


def since_jump(curve: Curve, plan: Plan) -> tuple[Curve, Plan]:
    """Return what was recorded since the learning rate last jumped: the loss follows another curve from there on.

    It jumps where it falls in stairs or starts again: to half as much again or a third less, and by far more than just
    before and after.
    """
    lr = plan.lr
    peak = 0.0 if lr is None else float(np.max(lr.values, initial=0.0))
    if lr is None or peak <= 0:
        return curve, plan
    begun = int(np.argmax(lr.values >= _WARM * peak))
    moves = np.abs(np.diff(np.log(np.maximum(lr.values[begun:], _NOTHING * peak))))
    around = np.maximum(np.r_[0.0, moves[:-1]], np.r_[moves[1:], 0.0])
    jumps = np.flatnonzero((moves > _JUMP) & (moves > _ALONE * around))
    if not len(jumps) or (jump := lr.steps[begun + 1 + jumps[-1]]) > curve.steps[-1]:
        return curve, plan
    later, rates = (Curve(one.steps[one.steps >= jump], one.values[one.steps >= jump]) for one in (curve, lr))
    return later, replace(plan, lr=rates)


def _stairs(lr: Curve, first: int, rest: Floats) -> Curve | None:
    """Return equal falls at equal distances, of which two were recorded, and what follows of them."""
    steps, values = lr.steps[first:], lr.values[first:]
    falls = np.flatnonzero(np.diff(values))
    if len(falls) < 2 or len(falls) > len(values) // 4:
        return None
    factors, apart = values[falls + 1] / values[falls], np.diff(steps[falls + 1])
    if np.ptp(factors) > _TOLERANCE or factors[0] >= 1 or np.ptp(apart) > 2 * np.max(np.diff(steps)):
        return None
    more = np.floor((rest - steps[falls[-1] + 1]) / np.mean(apart) + 1e-9)
    return Curve(rest, values[-1] * factors[0] ** np.maximum(more, 0.0))


def _decay(lr: Curve, since: int, first: int, peak: float, end: float, rest: Floats) -> Curve | None:
    if len(lr.steps) - since < 4:
        return None
    best: tuple[float, Floats] | None = None
    # A decay begins at the warm-up's end, or later after a constant range.
    for begin in {float(lr.steps[first]), float(lr.steps[since])}:
        done = np.clip((lr.steps[since:] - begin) / (end - begin), 0.0, 1.0)
        ahead = np.clip((rest - begin) / (end - begin), 0.0, 1.0)
        for shape in _SHAPES:
            fall, later = shape(done), shape(ahead)
            # The lowest rate is the one free number of a shape: rate = floor + (peak - floor) * fall.
            lost = 1.0 - fall
            if not np.any(lost > 0):
                continue
            depth = float(np.sum(lost * (peak - lr.values[since:])) / np.sum(lost**2))
            depth = min(depth, peak)
            miss = float(np.max(np.abs(peak - depth * lost - lr.values[since:]))) / peak
            if best is None or miss < best[0]:
                best = (miss, peak - depth * (1.0 - later))
    if best is None or best[0] > _TOLERANCE:
        return None
    return Curve(rest, np.maximum(best[1], 0.0))
