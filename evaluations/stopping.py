"""How the rule of `forecasts/stopping.py` and others do on whole sweeps that were trained to their end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

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
        return np.array(list(map(_newest, self.runs)))


def _end_of(run: SweptRun) -> float:
    return float(run.plan.last_step or 0)


def _newest(run: SweptRun) -> float:
    return math.inf if run.is_lost or not len(run.curve.values) else float(run.curve.values[-1])


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
    end = _end_of(run)
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
        longest = max(map(_end_of, group))
        for look in range(1, _LOOKS + 1):
            for run in group:
                if run.key not in stopped:
                    reached[run.key] = min(longest * look / _LOOKS, _end_of(run))
            seen = [seen_at(run, reached[run.key]) for run in group]
            live = [run for run in seen if run.is_live and run.key not in stopped]
            ended = [replace(run, is_live=False) for run in seen if not run.is_live or run.key in stopped]
            stopped |= rule(live, [*before, *ended, *live])
        before += [replace(seen_at(run, reached[run.key]), is_live=False) for run in group]
    ends, planned = sweep.ends, sum(map(_end_of, sweep.runs))
    best = int(ends.argmin())
    kept = [end for run, end in zip(sweep.runs, ends, strict=True) if run.key not in stopped]
    return Outcome(
        saved=1 - sum(reached.values()) / planned,
        best_stopped=sweep.runs[best].key in stopped,
        regret=float(min(kept, default=math.inf) / ends[best] - 1),
    )


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
                if (run.key, rung) not in results and run.step >= rung * _end_of(run) - 1e-9
            ]
            for run in due:
                results[run.key, rung] = _newest(run)
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
        is_due = len(means) >= 3 and at >= _GRACE * _end_of(run)
        if is_due and (run.is_lost or float(np.min(run.curve.values)) > float(np.median(means))):
            stops.add(run.key)
    return stops


# ---------------------------------------------------------------- fitting

_PARTS: Final = ["slope", "noise", "first_quarter", "whole"]
_CHOICES: Final = (
    *((0.1, 0.3, 1.0), (1.0, 2.0, 4.0), (0.1, 0.3, 1.0, 2.0)),
    *((0.02, 0.05, 0.1, 0.2), (0.3, 1.0, 2.0)),
)
"""Weights of the parts of the rule's unit, and of a learning rate that decays."""


def looks_of(sweep: Sweep, way: str) -> pd.DataFrame:
    """Follow a sweep of which nothing is stopped: what the rule sees at every look of every run, a row each."""
    rows: list[tuple[Any, ...]] = []
    whole = sum(map(_end_of, sweep.runs))
    best = sweep.runs[int(sweep.ends.argmin())].key

    def watch(live: Sequence[SweptRun], every: Sequence[SweptRun]) -> set[str]:
        for run in live:
            end = _end_of(run)
            if len(run.curve.values) >= FEWEST and run.curve.steps[-1] >= FIRST * end and not run.is_lost:
                of = compare(run, every)
                if of is not None:
                    # What stopping the run here saves, as a share of all steps of the sweep.
                    about = run.key, run.key == best, (end - run.step) / whole
                    rows.append((*about, of.level - of.best_level, of.decay, *of.parts))
        return set()

    replay(sweep, watch, WAYS[way])
    columns = ["run", "is_best", "left", "gap", "decay", *_PARTS]
    return pd.DataFrame(rows, columns=columns).assign(sweep=f"{sweep.id} {way}")


def fit(looks: Sequence[pd.DataFrame]) -> Fit:
    """Return constants that save many steps, with the limit above every margin of a best run.

    The mean of the best tenth of all combinations is taken: the best one alone is right for these sweeps only.
    """
    table = pd.concat(looks, ignore_index=True)
    run = table.groupby(["sweep", "run"]).ngroup().to_numpy()
    is_best = table["is_best"].to_numpy(bool)
    left, gap, decay = (table[name].to_numpy(float) for name in ("left", "gap", "decay"))
    parts = table[_PARTS].to_numpy(float)

    def margins(weights: np.ndarray) -> np.ndarray:
        unit = parts @ weights[:-1] * (1 + weights[-1] * np.maximum(0.0, decay))
        return np.asarray(gap / np.maximum(unit, 1e-300))

    tried = []
    for weights in map(np.array, itertools.product(*_CHOICES)):
        found = margins(weights)
        limit = _SAFETY * max(float(found[is_best].max()), 1e-9)
        # The earliest look at which a run is stopped is the one with the most steps left.
        saved = np.zeros(run.max() + 1)
        np.maximum.at(saved, run, np.where(found > limit, left, 0.0))
        tried.append((float(saved.sum()), np.append(weights[:-1] * limit, weights[-1])))
    tried.sort(key=lambda one: -one[0])
    weights = np.exp(np.mean([np.log(weights) for _, weights in tried[: len(tried) // 10]], axis=0))
    of_best = pd.Series(margins(weights)).where(is_best).groupby(table["sweep"]).max().fillna(0.0)
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
        saved, regrets = ([getattr(one, what) for one in found] for what in ("saved", "regret"))
        wrong = [sweep.id for sweep, one in zip(sweeps, found, strict=True) if one.best_stopped]
        if options.list_errors:
            print(f"{name}, {way}: best stopped in {wrong}")
        stopped = f"{len(wrong)} of {len(found)}"
        shares = f"{100 * np.mean(regrets):.2f} %", f"{100 * max(regrets):.1f} %"
        rows.append([name, way, f"{100 * np.mean(saved):.0f} %", stopped, *shares])
    about = (
        f"{len(sweeps)} made sweeps of 16 real small trainings of {len({one.family for one in sweeps})} families, each "
        f"trained to its end. A rule looks {_LOOKS} times. Regret: by how much the final validation loss of the best "
        "run that was kept is above that of the best of all."
    )
    header = ["rule", "runs go", "steps saved", "best run stopped", "mean regret", "worst regret"]
    return f"{about}\n\n{table(header, rows)}"


def _both_ways(sweep: Sweep) -> list[pd.DataFrame]:
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
