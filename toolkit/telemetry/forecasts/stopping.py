"""Which live runs of a sweep can be stopped: those that will not become its best, what that saves, and the risk.

Nothing is stopped here. How often it is wrong on whole sweeps: docs/answers.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from toolkit.telemetry.diagnostics.robust import MAD_TO_SIGMA
from toolkit.telemetry.forecasts.curve import Curve, Plan
from toolkit.telemetry.forecasts.schedule import rest_of_schedule
from toolkit.telemetry.runfolder.metrics import Direction
from toolkit.telemetry.runs.formatting import count, short_number

RISK: Final = 0.02
"""The chance that a run that can be stopped would have become the best, unless another one is asked for.

No lower one is named: best runs that were stopped in sweeps left out were not just above the limit."""
FIRST: Final = 0.2
"""No run is judged before this share of its steps: the order of runs at their beginning says little."""
FEWEST: Final = 4
"""Values that a run needs to be judged."""
_COMPARED: Final = 3
"""Runs with the same plan, itself included, that a comparison at the same step needs."""
_WINDOW: Final = 0.35
"""The newest share of the values, from which level, slope and noise are taken."""
_SAME: Final = 0.03
"""Learning rates of one shape differ by at most this share of the highest one."""


# Fitted on made sweeps, printed by `make evaluate QUESTION=stopping ARGS=--fit` of commit 087609e5.
_WEIGHTS: Final = (0.182, 1.23, 1.47, 0.0525)
"""Of each of the parts of `Lag`."""
_FOR_DECAY: Final = 0.523
"""How much more a run may make up by a higher learning rate that decays."""
_TAIL: Final = 0.098
"""By how much more margin a best run is found behind e times less often."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SweptRun:
    """One run of the sweep."""

    key: str
    name: str
    curve: Curve
    """The metric so far."""
    plan: Plan
    """Its last step and its learning rates so far."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """They may name the schedule of the learning rate."""
    is_live: bool = False
    is_lost: bool = False
    """Whether its newest values are not numbers."""
    doubt: str = ""
    """Why nothing can be said of the rest of it, as a sentence."""
    step: float = 0.0
    """Its newest step, with a value or without."""
    step_s: float | None = None
    """Recorded seconds of a step, evaluations and pauses included."""
    watts: float | None = None
    """Recorded power; None if it is not known."""
    _levels: dict[int, tuple[float, float, float] | None] = field(default_factory=dict, init=False)

    @property
    def left(self) -> float:
        """Steps to its planned end; 0 if that is not known."""
        return max(0.0, (self.plan.last_step or 0) - float(max([self.step, *self.curve.steps[-1:]])))

    def level_at(self, step: float) -> tuple[float, float, float] | None:
        """Return where it was at `step`: the value, its change with the logarithm of the step, and the noise."""
        upto = int(np.searchsorted(self.curve.steps, step, side="right"))
        if upto not in self._levels:
            self._levels[upto] = _local(self.curve.steps[:upto], self.curve.values[:upto])
        return self._levels[upto]

    @functools.cached_property
    def rates(self) -> np.ndarray | None:
        """The learning rates so far at each 40th of the way; None if none was recorded."""
        lr, end = self.plan.lr, self.plan.last_step
        if lr is None or not len(lr.steps) or not end:
            return None
        at = np.linspace(0.025, 1.0, 40) * end
        return np.asarray(np.interp(at[at <= lr.steps[-1]], lr.steps, lr.values))

    def has_plan_of(self, other: SweptRun) -> bool:
        """Return whether both have the same end and, as far as recorded, the same shape of the learning rate."""
        mine, theirs = self.rates, other.rates
        if self.plan.last_step != other.plan.last_step or mine is None or theirs is None:
            return self.plan.last_step == other.plan.last_step and mine is theirs
        both = np.array([rates[: min(len(mine), len(theirs))] for rates in (mine, theirs)])
        shapes = both / np.maximum(both.max(axis=1, keepdims=True, initial=0.0), 1e-300)
        return bool(np.abs(shapes[0] - shapes[1]).max(initial=0.0) <= _SAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One live run: whether it can be stopped, and why."""

    key: str
    name: str
    can_stop: bool
    why: str
    """One sentence."""
    risk: float = 1.0
    """How often, in made sweeps, a run at least as far behind became the best."""
    steps: float = 0.0
    """What stopping it saves; `seconds` and `kwh` are None if they are not known."""
    seconds: float | None = None
    kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The live runs of a sweep, those that can be stopped first."""

    runs: tuple[Judged, ...] = ()
    left_out: tuple[str, ...] = ()
    """Names of live runs that were not read."""

    @property
    def stoppable(self) -> tuple[Judged, ...]:
        """Those that can be stopped."""
        return tuple(run for run in self.runs if run.can_stop)

    @property
    def risk(self) -> float:
        """How likely one of them would have become the best."""
        return max((run.risk for run in self.stoppable), default=0.0)


class Lag(NamedTuple):
    """How far a run is behind the best one with the same plan at the same step, and what that is measured by."""

    best: SweptRun
    level: float
    best_level: float
    parts: tuple[float, float, float, float]
    """What it may still make up: by its slope, noise, the gap of the first quarter of the runs, and the whole
    improvement by the share of steps left."""
    decay: float
    """Logarithm of its learning rate over that of the best run, by the share of it that decays until the end."""


def which_to_stop(
    runs: Sequence[SweptRun],
    *,
    metric: str,
    direction: Direction = "min",
    risk: float = RISK,
) -> Stopping:
    """Judge each live run against the others, those that have ended included.

    Runs with the same number of steps and the same shape of the learning rate are compared at the same step.
    `risk` is how likely one of those that can be stopped may become the best.
    """
    sign = -1.0 if direction == "max" else 1.0
    runs = [replace(run, curve=Curve(run.curve.steps, sign * run.curve.values)) for run in runs]
    judge = _Judge(runs, metric, sign, risk)
    judged = sorted((judge(run) for run in runs if run.is_live), key=lambda one: (not one.can_stop, one.name))
    return Stopping(runs=tuple(judged))


def compare(run: SweptRun, runs: Sequence[SweptRun]) -> Lag | None:
    """Compare a run at its newest value with those of the same plan; None if they are too few."""
    at, end = float(run.curve.steps[-1]), float(run.plan.last_step or 0)
    own = run.level_at(at)
    same = [other for other in runs if len(other.curve.steps) and (other is run or run.has_plan_of(other))]
    if own is None or len(same) < _COMPARED:
        return None
    reached = [(other, other.level_at(at)) for other in same if other.curve.steps[-1] >= 0.95 * at]
    found = [(of, other) for other, of in reached if of is not None]
    of_best, best = min(found, key=lambda one: one[0][0])
    levels = sorted(of[0] for of, _ in found)
    # Those that were stopped before this step would be the last ones.
    quarter = levels[min(max(1, len(same) // 4), len(levels) - 1)] - of_best[0]
    first = float(np.median([other.curve.values[0] for other in same]))
    whole = max(first, float(np.median(levels))) - of_best[0]
    parts = (
        max(0.0, -own[1]) * math.log(max(end / at, 1.0)),
        math.hypot(own[2], of_best[2]),
        quarter,
        whole * max(0.0, 1.0 - at / end),
    )
    return Lag(best, own[0], of_best[0], parts, _decay(run, best, at))


class _Judge:
    """Judges the runs of one sweep."""

    def __init__(self, runs: Sequence[SweptRun], metric: str, sign: float, risk: float) -> None:
        self._runs, self._metric, self._sign = runs, metric, sign
        self._limit = 1.0 + _TAIL * math.log(RISK / min(max(risk, RISK), 0.5))

    def __call__(self, run: SweptRun) -> Judged:
        end, known = run.plan.last_step, len(run.curve.values)
        if end is None:
            return self._judged(run, "It does not say at which step it ends.")
        if run.left <= 0:
            return self._judged(run, "It has reached its planned end.")
        if run.is_lost and any(len(other.curve.values) and not other.is_lost for other in self._runs):
            return self._judged(run, "Its newest values are not numbers.", math.inf)
        if run.doubt:
            return self._judged(run, run.doubt)
        if known < FEWEST:
            return self._judged(run, f"It has {count(known)} values of {self._metric}, and needs {FEWEST}.")
        if run.curve.steps[-1] < FIRST * end:
            return self._judged(run, f"It is judged from step {count(math.ceil(FIRST * end))} on.")
        lag = compare(run, self._runs)
        if lag is None:
            return self._judged(run, f"Fewer than {_COMPARED} runs have its plan.")
        return self._at_same_step(run, lag)

    def _at_same_step(self, run: SweptRun, lag: Lag) -> Judged:
        step = count(int(run.curve.steps[-1]))
        if lag.best is run:
            return self._judged(run, f"It is the best at step {step}.")
        # A high learning rate hides progress that shows when it decays.
        unit = float(np.dot(_WEIGHTS, lag.parts)) * (1.0 + _FOR_DECAY * max(0.0, lag.decay))
        why = (
            f"{self._text(lag.level)} at step {step}, where {lag.best.name} had "
            f"{self._text(lag.best_level)}; it may still make up {self._limit * unit:.2g}."
        )
        return self._judged(run, why, (lag.level - lag.best_level) / max(unit, 1e-300))

    def _text(self, value: float) -> str:
        return short_number(self._sign * value)

    def _judged(self, run: SweptRun, why: str, margin: float = -math.inf) -> Judged:
        if margin <= self._limit:
            return Judged(key=run.key, name=run.name, can_stop=False, why=why)
        seconds = None if run.step_s is None else run.left * run.step_s
        return Judged(
            key=run.key,
            name=run.name,
            can_stop=True,
            why=why,
            risk=RISK * math.exp(max(0.0, (1.0 - margin) / _TAIL)),
            steps=run.left,
            seconds=seconds,
            kwh=None if seconds is None or run.watts is None else seconds * run.watts / 3.6e6,
        )


def _local(steps: np.ndarray, values: np.ndarray) -> tuple[float, float, float] | None:
    """Fit a line over the logarithm of the step to the newest values; values far from it have small weights."""
    if len(values) < FEWEST or steps[-1] <= 0:
        return None
    newest = max(FEWEST, math.ceil(_WINDOW * len(values)))
    values = values[-newest:]
    at = np.log(np.maximum(steps[-newest:], 0.5) / steps[-1])
    weights = np.ones(newest)
    for _ in range(4):
        centre, mean = np.average(at, weights=weights), np.average(values, weights=weights)
        spread = float(weights @ (at - centre) ** 2)
        slope = float(weights @ ((at - centre) * values)) / spread if spread > 0 else 0.0
        level = float(mean - slope * centre)
        miss = values - level - slope * at
        typical = MAD_TO_SIGMA * float(np.median(np.abs(miss))) + 1e-12 * (abs(level) + 1e-300)
        weights = 1.0 / (1.0 + (miss / (2.0 * typical)) ** 2)
    return level, slope, math.sqrt(float(miss @ miss) / (newest - 2))


def _decay(run: SweptRun, best: SweptRun, at: float) -> float:
    rates, of_best = run.plan.lr, best.plan.lr
    if rates is None or of_best is None:
        return 0.0
    high, best_high = (float(np.max(lr.values, initial=0.0)) for lr in (rates, of_best))
    if not 0 < best_high < high:
        return 0.0
    now = max(float(np.interp(at, rates.steps, rates.values)), 1e-300)
    rest = rest_of_schedule(rates, run.plan.last_step, run.settings)
    # Zero keeps a run longer.
    last = 0.0 if rest is None else float(rest.values[-1])
    return min(max(1.0 - last / now, 0.0), 1.0) * math.log(high / best_high)
