"""How the rule of `forecasts/stopping.py` and others do on whole sweeps that were trained to their end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evaluations.curves import MadeRun, MadeSweep, made_sweeps
from evaluations.figures import Options, say, table
from toolkit.telemetry.forecasts.curve import Curve, Plan
from toolkit.telemetry.forecasts.stopping import FEWEST, FIRST, FITTED, Fit, SweptRun, compare, which_to_stop

PAGE: Final = "answers.md"
ETA: Final = 3
_LOOKS: Final = 20
WAYS: Final = {"all together": 16, "four at a time": 4}
_SAFETY: Final = 1.3
"""The limit is so many times the largest margin at which the best run of a fitted sweep ever was."""
_GRACE: Final = 0.2
_JOBS: Final = 2

Rule = Callable[[Sequence[SweptRun], Sequence[SweptRun]], set[str]]
"""From the live runs and all of them, those that it stops."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of one sweep."""

    saved: float
    """Share of the steps."""
    best_stopped: bool
    regret: float
    """Final loss of the best run that was kept over that of the best of all, minus 1."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Whole curves of one sweep."""

    id: str
    family: str
    runs: Sequence[SweptRun]

    @property
    def ends(self) -> np.ndarray:
        """Return the final value of each run; infinity if that is not a number."""
        finals = [
            math.inf if run.is_lost or not len(run.curve.values) else run.curve.values[-1]
            for run in self.runs
        ]
        return np.array(finals)


def of_made(sweep: MadeSweep) -> Sweep:
    """Return a made sweep with the validation loss as what is compared."""
    return Sweep(sweep.id, sweep.family, [_whole(str(at), run) for at, run in enumerate(sweep.runs)])


def _whole(key: str, run: MadeRun) -> SweptRun:
    columns = {name: np.asarray(values, float) for name, values in run.columns.items()}
    steps, values = columns["eval_step"], columns["val_loss"]
    known = np.isfinite(values)
    return SweptRun(
        key=key,
        name=key,
        curve=Curve(steps[known], values[known]),
        plan=Plan(last_step=run.steps, lr=Curve(columns["step"], columns["lr"])),
        settings={"lr_schedule": run.schedule},
        is_lost=not known[-1],
    )


def seen_at(run: SweptRun, step: float) -> SweptRun:
    """Return a run as it was at this step."""
    end = float(run.plan.last_step or 0)
    step = min(step, end)
    upto = int(np.searchsorted(run.curve.steps, step, side="right"))
    lr = run.plan.lr
    if lr is not None:
        rates = int(np.searchsorted(lr.steps, step, side="right"))
        lr = Curve(lr.steps[:rates], lr.values[:rates])
    return replace(
        run,
        curve=Curve(run.curve.steps[:upto], run.curve.values[:upto]),
        plan=Plan(last_step=run.plan.last_step, lr=lr),
        is_live=step < end,
        is_lost=run.is_lost and 0 < upto == len(run.curve.values) and step > run.curve.steps[-1],
        step=step,
    )


def replay(sweep: Sweep, rule: Rule, together: int) -> Outcome:
    """Run a sweep with a rule that may stop runs at each of twenty looks."""
    reached = dict.fromkeys((run.key for run in sweep.runs), 0.0)
    stopped: set[str] = set()
    before: list[SweptRun] = []
    for first in range(0, len(sweep.runs), together):
        group = sweep.runs[first : first + together]
        longest = max(float(run.plan.last_step or 0) for run in group)
        for look in range(1, _LOOKS + 1):
            for run in group:
                if run.key not in stopped:
                    reached[run.key] = min(longest * look / _LOOKS, float(run.plan.last_step or 0))
            seen = [seen_at(run, reached[run.key]) for run in group]
            live = [run for run in seen if run.is_live and run.key not in stopped]
            others = [run for run in seen if not run.is_live or run.key in stopped]
            ended = [_ended(run) for run in others]
            stopped |= rule(live, [*before, *ended, *live])
        before += [_ended(seen_at(run, reached[run.key])) for run in group]
    ends, planned = sweep.ends, sum(float(run.plan.last_step or 0) for run in sweep.runs)
    best = int(ends.argmin())
    kept = [end for run, end in zip(sweep.runs, ends, strict=True) if run.key not in stopped]
    return Outcome(
        saved=1 - sum(reached.values()) / planned,
        best_stopped=sweep.runs[best].key in stopped,
        regret=float(min(kept, default=math.inf) / ends[best] - 1),
    )


def _ended(run: SweptRun) -> SweptRun:
    return replace(run, is_live=False)


# ---------------------------------------------------------------- rules


def ours(fitted: Fit) -> Rule:
    """Return our rule with these constants."""
    return lambda _live, every: {
        run.key for run in which_to_stop(every, metric="val_loss", fitted=fitted).stoppable
    }


def halving() -> Rule:
    """Return successive halving: at 1/9 and 1/3 of its steps a run goes on if it is in the best third there.

    With runs one after another, of those that have come so far, as the asynchronous kind does.
    """
    rungs = [ETA**-2, ETA**-1]
    results: dict[tuple[str, float], float] = {}

    def rule(live: Sequence[SweptRun], _every: Sequence[SweptRun]) -> set[str]:
        stops: set[str] = set()
        for rung in rungs:
            due = [
                run
                for run in live
                if (run.key, rung) not in results and run.step >= rung * (run.plan.last_step or 0) - 1e-9
            ]
            for run in due:
                results[run.key, rung] = (
                    math.inf if run.is_lost or not len(run.curve.values) else float(run.curve.values[-1])
                )
            here = sorted(value for (_, at), value in results.items() if at == rung)
            keeps = max(1, len(here) // ETA)
            stops |= {run.key for run in due if results[run.key, rung] > here[keeps - 1]}
        return stops

    return rule


def medians(live: Sequence[SweptRun], every: Sequence[SweptRun]) -> set[str]:
    """Stop a run whose best value so far is worse than the median of the running means of others at that step."""
    stops = set()
    for run in live:
        at = run.curve.steps[-1] if len(run.curve.steps) else 0.0
        means = [
            float(np.mean(other.curve.values[other.curve.steps <= at]))
            for other in every
            if other is not run and len(other.curve.steps) and other.curve.steps[-1] >= at > 0
        ]
        is_due = len(means) >= 3 and at >= _GRACE * (run.plan.last_step or 0)
        if is_due and (run.is_lost or float(np.min(run.curve.values)) > float(np.median(means))):
            stops.add(run.key)
    return stops


# ---------------------------------------------------------------- fitting


@dataclass(frozen=True, slots=True)
class Looks:
    """What the rule sees of one sweep, for every look and run: a row each."""

    sweep: Sweep
    way: str
    run: np.ndarray
    left: np.ndarray
    """Share of all steps of the sweep that stopping the run at this look saves."""
    gap: np.ndarray
    parts: np.ndarray
    decay: np.ndarray


def looks_of(sweep: Sweep, way: str) -> Looks:
    """Follow a sweep of which nothing is stopped."""
    rows: list[tuple[float, ...]] = []
    whole = sum(float(run.plan.last_step or 0) for run in sweep.runs)
    place = {run.key: at for at, run in enumerate(sweep.runs)}

    def watch(live: Sequence[SweptRun], every: Sequence[SweptRun]) -> set[str]:
        for run in live:
            end = float(run.plan.last_step or 0)
            if len(run.curve.values) >= FEWEST and run.curve.steps[-1] >= FIRST * end and not run.is_lost:
                of = compare(run, every)
                if of is not None:
                    gap = of.level - of.best_level
                    rows.append((place[run.key], (end - run.step) / whole, gap, *of.parts, of.decay))
        return set()

    replay(sweep, watch, WAYS[way])
    table = np.array(rows).reshape(len(rows), -1) if rows else np.zeros((0, 8))
    return Looks(sweep, way, table[:, 0].astype(int), table[:, 1], table[:, 2], table[:, 3:-1], table[:, -1])


class Flat:
    """The looks of many sweeps in one table, in which each run has its rows next to each other."""

    def __init__(self, looks: Sequence[Looks]) -> None:
        orders = [np.argsort(one.run, kind="stable") for one in looks]
        runs = [one.run[order] + 1000 * at for at, (one, order) in enumerate(zip(looks, orders, strict=True))]
        run = np.concatenate(runs)
        self._first = np.flatnonzero(np.diff(run, prepend=-1))
        self._sweep = run[self._first] // 1000
        self._sweeps = len(looks)
        best = np.array([int(one.sweep.ends.argmin()) for one in looks])
        self._is_best = run[self._first] % 1000 == best[self._sweep]
        self._left, self._gap, self._parts, self._decay = (
            np.concatenate([getattr(one, name)[order] for one, order in zip(looks, orders, strict=True)])
            for name in ("left", "gap", "parts", "decay")
        )

    def margins(self, weights: np.ndarray) -> np.ndarray:
        """Return the margin of every row."""
        unit = self._parts @ weights[:-1] * (1 + weights[-1] * np.maximum(0.0, self._decay))
        return np.asarray(self._gap / np.maximum(unit, 1e-300))

    def of_best(self, margins: np.ndarray) -> np.ndarray:
        """Return, for each sweep, the largest margin at which its best run ever was."""
        found = np.zeros(self._sweeps)
        found[self._sweep[self._is_best]] = np.maximum.reduceat(margins, self._first)[self._is_best]
        return found

    def saved(self, margins: np.ndarray, limit: float) -> np.ndarray:
        """Return, for each sweep, the share of steps that is saved with this limit."""
        # The earliest look at which a run is stopped is the one with the most steps left.
        of_run = np.maximum.reduceat(np.where(margins > limit, self._left, 0.0), self._first)
        return np.bincount(self._sweep, of_run, self._sweeps)


_CHOICES: Final = (
    (0.1, 0.3, 1.0),
    (1.0, 2.0, 4.0),
    (0.1, 0.3, 1.0, 2.0),
    (0.02, 0.05, 0.1, 0.2),
    (0.3, 1.0, 2.0),
)


def fit(looks: Sequence[Looks]) -> Fit:
    """Return constants that save many steps, with the limit above every margin of a best run.

    The mean of the best tenth of all combinations is taken: the best one alone is right for these sweeps only.
    """
    flat = Flat(looks)
    tried = []
    for weights in map(np.array, itertools.product(*_CHOICES)):
        margins = flat.margins(weights)
        limit = _SAFETY * max(float(flat.of_best(margins).max()), 1e-9)
        tried.append((float(flat.saved(margins, limit).mean()), np.append(weights[:-1] * limit, weights[-1])))
    tried.sort(key=lambda one: -one[0])
    weights = np.exp(np.mean([np.log(weights) for _, weights in tried[: len(tried) // 10]], axis=0))
    of_best = flat.of_best(flat.margins(weights))
    limit = _SAFETY * float(of_best.max())
    # How the largest margins of best runs thin out: the mean excess over the fourth fifth of them.
    high = np.sort(of_best / limit)[-max(3, len(of_best) // 5) :]
    tail = float(np.mean(high - high[0]))
    scaled = np.append(weights[:-1] * limit, weights[-1])
    return Fit(
        weights=tuple(float(f"{weight:.3g}") for weight in scaled), tail=float(f"{max(tail, 0.05):.2g}")
    )


# ---------------------------------------------------------------- figures


def run(options: Options) -> str:
    """Measure our rule on sweeps that it was not fitted on, and others."""
    sweeps = [of_made(sweep) for sweep in made_sweeps()][: 8 if options.quick else None]
    say(f"which of {16 * len(sweeps)} runs of {len(sweeps)} made sweeps can be stopped")
    with ProcessPoolExecutor(_JOBS) as pool:
        looks = dict(zip((sweep.id for sweep in sweeps), pool.map(_both_ways, sweeps), strict=True))
        if options.fit:
            print(
                f"fitted on all of them: {fit([one for each in looks.values() for one in each])}; in use: {FITTED}"
            )
        fits = {
            family: fit([one for sweep in sweeps if sweep.family != family for one in looks[sweep.id]])
            for family in sorted({sweep.family for sweep in sweeps})
        }
        outcomes = list(pool.map(_replayed, sweeps, [fits[one.family] for one in sweeps]))
    rows = []
    for name, way in outcomes[0]:
        found = [each[name, way] for each in outcomes]
        regrets = [one.regret for one in found]
        wrong = [sweep.id for sweep, one in zip(sweeps, found, strict=True) if one.best_stopped]
        if options.list_errors:
            print(f"{name}, {way}: best stopped in {wrong}")
        rows.append(
            [
                name,
                way,
                f"{100 * np.mean([one.saved for one in found]):.0f} %",
                f"{len(wrong)} of {len(found)}",
                f"{100 * np.mean(regrets):.2f} %",
                f"{100 * max(regrets):.1f} %",
            ]
        )
    about = (
        f"{len(sweeps)} made sweeps of 16 real small trainings of {len({one.family for one in sweeps})} families, each "
        f"trained to its end. A rule looks {_LOOKS} times. Regret: by how much the final validation loss of the best "
        "run that was kept is above that of the best of all."
    )
    header = ["rule", "runs go", "steps saved", "best run stopped", "mean regret", "worst regret"]
    return f"{about}\n\n{table(header, rows)}"


def _both_ways(sweep: Sweep) -> list[Looks]:
    return [looks_of(sweep, way) for way in WAYS]


def _replayed(sweep: Sweep, fitted: Fit) -> dict[tuple[str, str], Outcome]:
    """Return what each rule makes of one sweep."""
    rules: dict[str, Callable[[], Rule]] = {
        "ours, fitted on other families": lambda: ours(fitted),
        f"successive halving, eta {ETA}": halving,
        "median stopping rule": lambda: medians,
    }
    return {
        (name, way): replay(sweep, rule(), together)
        for name, rule in rules.items()
        for way, together in WAYS.items()
    }
