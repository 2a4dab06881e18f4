"""The rest of a learning-rate schedule, from a run's settings and the learning rates recorded so far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.telemetry.forecasts.series import Curve, Floats

_TOLERANCE = 0.02
"""A recorded learning rate may differ from its schedule by this share of the highest one."""

_POINTS = 60


def rest_of_schedule(
    lr: Curve | None, last_step: int | None, settings: Mapping[str, object] | None = None
) -> Curve | None:
    """Return the learning rates from the last recorded one to `last_step`, or None if they are not known.

    A schedule counts as known if the rates recorded since the warm-up follow one shape that ends at `last_step`
    (cosine, linear, a power, constant). Constant so far is taken as constant to the end, unless `settings` name a
    schedule that decays later.
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
        still = len(lr.steps) - first
        constant = still >= 5 and lr.steps[-1] - lr.steps[first] > 0.1 * last_step
        return Curve(rest, np.full(_POINTS, peak)) if constant and not _decays_later(settings) else None
    return _decay(lr, since, first, peak, float(last_step), rest)


def _decay(lr: Curve, since: int, first: int, peak: float, end: float, rest: Floats) -> Curve | None:
    if len(lr.steps) - since < 4:
        return None
    best: tuple[float, Floats] | None = None
    # A decay begins at the warm-up's end, or later after a constant range.
    for begin in {float(lr.steps[first]), float(lr.steps[since])}:
        done = np.clip((lr.steps[since:] - begin) / (end - begin), 0.0, 1.0)
        ahead = np.clip((rest - begin) / (end - begin), 0.0, 1.0)
        for shape in (_cosine, _linear, _square, _root):
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


def _decays_later(settings: Mapping[str, object] | None) -> bool:
    names = [str(value).lower() for key, value in (settings or {}).items() if "sched" in key.lower()]
    return any(
        word in name for name in names for word in ("wsd", "stable", "step", "plateau", "linear", "cos")
    )


def _cosine(done: Floats) -> Floats:
    return 0.5 * (1.0 + np.cos(np.pi * done))


def _linear(done: Floats) -> Floats:
    return 1.0 - done


def _square(done: Floats) -> Floats:
    return (1.0 - done) ** 2


def _root(done: Floats) -> Floats:
    return 1.0 - np.sqrt(done)
