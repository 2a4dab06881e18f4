"""Where a loss will end: the final value of a curve with its 90 % interval, or why it cannot be forecast."""

from __future__ import annotations

import numpy as np

from toolkit.telemetry.forecasts.constants import FITTED
from toolkit.telemetry.forecasts.schedule import since_jump
from toolkit.telemetry.forecasts.series import Curve, Fitted, Floats, Forecast, NoForecast, Plan
from toolkit.telemetry.forecasts.signs import Signs, noise_of, signs_of
from toolkit.telemetry.runfolder.metrics import TRAIN_LOSSES, is_evaluation

__all__ = ["Curve", "Forecast", "NoForecast", "Plan", "forecast_curve"]

FEWEST = 15
"""Records that a forecast needs."""

SOONEST = 0.1
"""The share of the planned steps that a forecast needs."""

COOL_DOWN = 0.25
"""In ranges so far, how far below the middle of a forecast 19 of 20 losses ended at most where the rate was held until
its last fifth: made trainings, each family counting equally."""

_BAND = 40


def forecast_curve(
    metric: str, curve: Curve, plan: Plan, *, other: Curve | None = None, fitted: Fitted = FITTED
) -> Forecast | NoForecast:
    """Return where `metric` will be at the planned end, or why that cannot be said.

    The final value is the median of the last 20th of the records. `other` is the training loss when the metric is
    the validation loss: if that one diverged, neither is forecast.
    """
    curve = _finite(curve)
    why = refusal(metric, curve, plan) or (_diverged("the training loss", _finite(other)) if other else "")
    if why:
        return NoForecast(why)
    assert plan.last_step is not None
    end, now = float(plan.last_step), float(curve.steps[-1])
    ahead = np.linspace(now, end, _BAND)
    signs = signs_of(curve, plan, ahead)
    middle = float(signs.places() @ _at(signs.done, fitted, fitted.places))
    miss = float(np.exp(signs.difficulty(middle) @ np.array(fitted.difficulty)))
    if miss > fitted.hardest * signs.reach:
        return NoForecast(
            f"{metric} has changed too unevenly so far: the interval would be wider than its whole range."
        )
    miss = signs.usual_miss(miss)
    misses = _at(signs.done, fitted, fitted.known if signs.known else fitted.unknown)
    misses *= fitted.held_out if metric not in TRAIN_LOSSES and is_evaluation(metric) else 1.0
    # Half of the median miss: it was estimated from few curves.
    median = float(misses[2 + fitted.levels.index(0.5)])
    ends = signs.level + signs.unit * (middle + miss * np.append(misses, 0.5 * median))
    # What no curve shows before it comes: a rate that is held now takes the loss down when it falls.
    levels = np.array([0.05, 1.0, *fitted.levels, 1.0])
    reach = COOL_DOWN * signs.held * signs.unit * np.interp(levels, (0.05, 0.5), (1.0, 0.0))
    ends = np.where(reach > 0, np.minimum(ends, ends[-1] - reach), ends)
    if np.min(curve.values) >= 0:
        ends = np.maximum(ends, 0.0)
    low, high, centre = float(ends[0]), float(ends[1]), float(np.clip(ends[-1], ends[0], ends[1]))
    return Forecast(
        metric=metric,
        at_step=end,
        low=low,
        middle=centre,
        high=high,
        from_step=now,
        records=len(curve.values),
        band=_band(ahead, signs, (low, centre, high)),
        basis=_basis(signs, curve, plan),
        levels=np.array(fitted.levels),
        quantiles=ends[2:-1],
    )


def _at(done: float, fitted: Fitted, rows: tuple[tuple[float, ...], ...]) -> Floats:
    return np.array([np.interp(done, fitted.done, column) for column in zip(*rows, strict=True)])


def _finite(curve: Curve) -> Curve:
    known = np.isfinite(curve.values) & np.isfinite(curve.steps)
    return Curve(curve.steps[known].astype(float), curve.values[known].astype(float))


def refusal(metric: str, curve: Curve, plan: Plan) -> str:
    """Return why a curve cannot be forecast whatever its shape, or an empty text."""
    count = len(curve.values)
    if count < FEWEST:
        return f"{metric} has {count} records, and a forecast needs {FEWEST}."
    if plan.last_step is None:
        return "The run does not say at which step it ends."
    # No further record is due before it.
    if curve.steps[-1] + np.median(np.diff(curve.steps)) > plan.last_step:
        return "The run has reached its planned end."
    first = float(curve.steps[0])
    if curve.steps[-1] - first < SOONEST * (plan.last_step - first):
        return f"Less than {SOONEST:.0%} of the planned steps are done."
    if np.ptp(curve.values) == 0:
        return f"{metric} has been the same in all {count} records."
    later, _ = since_jump(curve, plan)
    begun, ends = later.steps[0], plan.last_step
    if len(later.steps) < FEWEST or curve.steps[-1] - begun < SOONEST * (ends - begun):
        return (
            f"The learning rate jumped at step {begun:,.0f}: a forecast needs {FEWEST} records and "
            f"{SOONEST:.0%} of the steps from there on."
        )
    return _diverged(metric, curve)


def _diverged(metric: str, curve: Curve) -> str:
    """Return why there is no forecast if the curve has left its own range upwards."""
    values = curve.values
    if len(values) < FEWEST:
        return ""
    recent = float(np.median(values[-max(3, len(values) // 20) :]))
    before = values[: -max(3, len(values) // 20)]
    begin = float(np.max(before[: max(3, len(before) // 10)]))
    if recent > begin + 3 * noise_of(values) and recent > float(np.median(before)) + 6 * noise_of(before):
        return (
            f"{metric} is above where it began: it has risen or diverged, and where that ends is not known."
        )
    return ""


def _basis(signs: Signs, curve: Curve, plan: Plan) -> str:
    so_far = f"{len(curve.values)} records up to step {curve.steps[-1]:,.0f} of {plan.last_step:,}"
    later, _ = since_jump(curve, plan)
    if len(later.steps) < len(curve.steps):
        so_far += f", {len(later.steps)} of them since the learning rate jumped at step {later.steps[0]:,.0f}"
    if not signs.known:
        return f"{so_far}; the rest of the learning-rate schedule is not known."
    if signs.fall > 0.01:
        return f"{so_far}, and a learning rate that will fall by {signs.fall:.0%} of its highest value."
    return f"{so_far}, and a learning rate that stays as it is."


def _band(
    ahead: Floats, signs: Signs, final: tuple[float, float, float]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the way to the final interval: the middle bends like the power law, the edges widen by a square root."""
    way = (ahead - ahead[0]) / (ahead[-1] - ahead[0])
    bend, path = way, signs.path
    if path[-1] != path[0]:
        bend = np.clip((path - path[0]) / (path[-1] - path[0]), 0.0, 1.0)
    low, middle, high = final
    centre = signs.level + (middle - signs.level) * bend
    spread = np.sqrt(way)
    return ahead, centre - (middle - low) * spread, centre, centre + (high - middle) * spread
