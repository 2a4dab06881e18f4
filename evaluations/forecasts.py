"""How often the forecast of a final loss is right: open curves with repositories left out, and made curves."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evaluations.curves import made_runs, made_sweeps, records_of, splits_of
from evaluations.figures import ROOT, Options, say, table, write_constants
from toolkit.telemetry.forecasts.curve import FEWEST, Forecast, forecast_curve, refusal
from toolkit.telemetry.forecasts.schedule import rest_of_schedule
from toolkit.telemetry.forecasts.series import Curve, Fitted, Plan
from toolkit.telemetry.forecasts.signs import MOVES, SMALLEST, Signs, signs_of

PAGE: Final = "answers.md"
CONSTANTS: Final = ROOT / "toolkit" / "telemetry" / "forecasts" / "constants.py"
FOLDS: Final = 10
CUTS: Final = (0.25, 0.5, 0.75)
_QUICK: Final = 100


@dataclass(frozen=True)
class Outcome:
    """What a forecast said of a case, and what came."""

    case: Case
    said: Forecast | None
    """None where it was refused."""

    @property
    def holds(self) -> bool:
        """Whether the final value is in the interval."""
        return self.said is not None and self.said.low <= self.case.series.final <= self.said.high

    @property
    def error(self) -> float:
        """Return how far off the middle is, in whole improvements."""
        assert self.said is not None
        return abs(self.said.middle - self.case.series.final) / self.case.series.improvement


def run(options: Options) -> str:
    """Return the figures; with `fit`, write the constants that were fitted on all open curves."""
    say("how often the forecast of a final loss is right")
    series = open_series(options.corpus)[: _QUICK if options.quick else None]
    cases = list(cases_of(series, SHARES))
    outcomes = left_out(cases, lambda one: str(fold_of(one.group, FOLDS)))
    far = left_out(cases, lambda one: one.source)
    fitted = fit(cases)
    if options.fit:
        lines = ["from toolkit.telemetry.forecasts.series import Fitted", f"FITTED: Final = {fitted!r}"]
        write_constants(CONSTANTS, "forecasts", "What was fitted on open training curves.", lines)
    train = _of(outcomes, "train_loss")
    groups = {
        "training loss": train,
        "… the rest of the lr known": [one for one in train if one.case.signs.known],
        "… not known": [one for one in train if not one.case.signs.known],
        "validation loss": _of(outcomes, "val_loss"),
        "training loss, frameworks left out whole": _of(far, "train_loss"),
        "validation loss, the same": _of(far, "val_loss"),
    }
    for schedule, made in made_series().items():
        made = made[: _QUICK // 5 if options.quick else None]
        named = [one for one in made if one.metric == "train_loss" and one.lr is not None]
        groups[f"made: {schedule}"] = [_outcome(case, fitted) for case in cases_of(named, CUTS)]
        if schedule in ("constant", "wsd"):
            # Of the others the recorded rates alone say what comes.
            bare = [replace(one, settings={}) for one in named]
            title = f"… {schedule}, not named by the settings"
            groups[title] = [_outcome(case, fitted) for case in cases_of(bare, CUTS)]
    heads = ["cut at 25/50/75 %", "cases", "refused"]
    heads += ["90 % interval holds", "median error", "of the last value's"]
    rows = [_row(name, group) for name, group in groups.items()]
    whole = [one for one in series if one.metric == "train_loss"]
    about = (
        f"{len(whole)} training losses of {len({one.group for one in whole})} repositories and "
        f"{len(series) - len(whole)} validation losses, cut after a share of their records. All constants are fitted "
        f"without the repository under test ({FOLDS} folds). The final value is the median of the last 5 % of the "
        "records; errors are in units of the run's whole improvement. The last recorded step counts as the planned "
        "end. Made: training losses of small trainings without a fault and of the better halves of the made sweeps."
    )
    return "\n\n".join([about, table(heads, rows), _expected(_of(far, "train_loss"))])


def left_out(cases: Sequence[Case], part_of: Callable[[Series], str]) -> list[Outcome]:
    """Forecast each case with constants from the other parts."""
    parts = [part_of(case.series) for case in cases]
    found = []
    for part in sorted(set(parts)):
        fitted = fit([case for case, own in zip(cases, parts, strict=True) if own != part])
        found += [
            _outcome(case, fitted)
            for case, own in zip(cases, parts, strict=True)
            if own == part and case.share in CUTS
        ]
    return found


def _outcome(case: Case, fitted: Fitted) -> Outcome:
    said = forecast_curve(case.series.metric, case.curve, case.plan, other=case.train, fitted=fitted)
    return Outcome(case, said if isinstance(said, Forecast) else None)


def _of(outcomes: Iterable[Outcome], metric: str) -> list[Outcome]:
    return [one for one in outcomes if one.case.series.metric == metric]


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    cells: list[list[str]] = []
    for cut in CUTS:
        here = [one for one in outcomes if one.case.share == cut]
        said = [one for one in here if one.said is not None]
        error = np.median([one.error for one in said] or np.nan)
        last = np.median([one.case.miss_of_last / one.case.series.improvement for one in said] or np.nan)
        holds = np.mean([one.holds for one in said] or np.nan)
        refused = 1 - len(said) / max(1, len(here))
        cells.append(
            [str(len(here)), f"{refused:.2f}", f"{holds:.2f}", f"{error:.3f}", f"{error / last:.2f}"]
        )
    return [name, *("/".join(column) for column in zip(*cells, strict=True))]


def _expected(outcomes: Iterable[Outcome]) -> str:
    """Return what to expect on other sources, with an interval from drawing repositories again and again."""
    by_group: dict[str, list[bool]] = {}
    for one in outcomes:
        if one.said is not None:
            by_group.setdefault(one.case.series.group, []).append(one.holds)
    dice, groups = np.random.default_rng(0), list(by_group.values())
    drawn = [
        np.mean(np.concatenate([groups[at] for at in dice.integers(0, len(groups), len(groups))]))
        for _ in range(1000)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    share = np.mean(np.concatenate(groups))
    return (
        f"To expect of sources that were not seen: the interval of a training loss holds {share:.2f} "
        f"({low:.2f} to {high:.2f}), from frameworks left out whole."
    )


# ---------------------------------------------------------------- curves


LONG: Final = 40
"""Records that a whole curve needs to be counted."""
TAIL: Final = 0.05
"""The final value is the median of this share of the records."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One loss of one run, to its end."""

    name: str
    group: str
    """What is left out together: a repository, or a family of made curves."""
    metric: str
    curve: Curve = field(repr=False)
    lr: Curve | None = field(repr=False)
    train: Curve | None = field(default=None, repr=False)
    """The training loss, where the metric is another one."""
    source: str = ""
    """What logged it: what is left out together to see what happens on sources of another kind."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What is known of its schedule."""

    @property
    def final(self) -> float:
        """Return the value that a forecast has to hit."""
        return float(np.median(self.curve.values[-max(1, round(TAIL * len(self.curve.values))) :]))

    @property
    def improvement(self) -> float:
        """Return the run's whole improvement, the unit of errors and widths."""
        first = np.median(self.curve.values[: max(1, round(TAIL * len(self.curve.values)))])
        return max(abs(float(first) - self.final), 1e-12)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A series as it was known at a share of its records."""

    series: Series
    share: float
    curve: Curve = field(repr=False)
    plan: Plan = field(repr=False)
    train: Curve | None = field(repr=False)
    why: str
    """Why it cannot be forecast, whatever the constants are."""
    signs: Signs = field(repr=False)

    @property
    def miss_of_last(self) -> float:
        """Return how far off "the last value stays" is: the median of the last 20th of the records."""
        last = np.median(self.curve.values[-max(1, int(TAIL * len(self.curve.values))) :])
        return abs(float(last) - self.series.final)


def open_series(corpus: Path) -> list[Series]:
    """Return the training and validation losses of the open curves with enough records."""
    found = []
    for split in splits_of(corpus):
        for run in split.labels:
            source = split.framework(run)
            found += series_of(run, split.repository(run), split.rows(run), source=source)
    return found


def made_series() -> dict[str, list[Series]]:
    """Return by their schedule the losses of made runs without a fault, and of the better half of each made sweep."""
    runs = [run for run in made_runs() if run.is_clean]
    for sweep in made_sweeps():
        by_end = sorted(sweep, key=lambda run: median(run.columns["val_loss"][-3:] or (math.inf,)))
        runs += by_end[: len(by_end) // 2]
    found: dict[str, list[Series]] = {}
    for number, run in enumerate(runs):
        settings = {"lr_scheduler": run.schedule}
        of_run = series_of(str(number), run.family, records_of(run.columns), settings=settings)
        found.setdefault(run.schedule, []).extend(of_run)
    return found


def series_of(run: str, group: str, rows: Sequence[dict[str, Any]], **about: Any) -> list[Series]:
    """Return the losses of one run with enough records."""
    lr, train, val = (_column(rows, name) for name in ("lr", "train_loss", "val_loss"))
    about |= {"name": run, "group": group, "lr": lr if len(lr.values) else None}
    found = []
    if len(train.values) >= LONG:
        found.append(Series(metric="train_loss", curve=train, **about))
    if len(val.values) >= LONG:
        found.append(Series(metric="val_loss", curve=val, train=train, **about))
    return found


def cases_of(series: Sequence[Series], shares: Sequence[float]) -> Iterator[Case]:
    """Cut each series after these shares of its records; what has fewer than 15 by then is left out.

    The end of the run counts as planned. The rest of the learning rate is never taken from the records: it is worked
    out from what was recorded before the cut.
    """
    for one in series:
        for share in shares:
            count = int(len(one.curve.values) * share)
            if count < FEWEST:
                continue
            curve = Curve(one.curve.steps[:count], one.curve.values[:count])
            now, end = float(curve.steps[-1]), round(float(one.curve.steps[-1]))
            lr = _until(one.lr, now)
            plan = Plan(last_step=end, lr=lr, planned_lr=rest_of_schedule(lr, end, one.settings))
            train = _until(one.train, now)
            why = refusal(one.metric, curve, plan)
            signs = signs_of(curve, replace(plan, lr=None) if why else plan, np.array([now]))
            yield Case(series=one, share=share, curve=curve, plan=plan, train=train, why=why, signs=signs)


def _until(curve: Curve | None, step: float) -> Curve | None:
    if curve is None:
        return None
    known = curve.steps <= step
    return Curve(curve.steps[known], curve.values[known])


def _column(rows: Sequence[dict[str, Any]], name: str) -> Curve:
    """Return the finite values of a column by rising steps; of a repeated step, the last."""
    values = {
        float(row["global_step"]): float(row[name])
        for row in rows
        if isinstance(row.get(name), (int, float)) and row.get("global_step") is not None
    }
    steps = sorted(step for step, value in values.items() if np.isfinite(value))
    return Curve(np.array(steps), np.array([values[step] for step in steps]))


# ---------------------------------------------------------------- fitting


Floats = npt.NDArray[np.float64]

SHARES: Final = (0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
"""Where the curves to fit on are cut."""
NODES: Final = (0.13, 0.25, 0.5, 0.75, 0.9)
_WINDOWS: Final = (0.1, 0.16, 0.16, 0.16, 0.11)
"""The middle at a node is fitted on cuts this near."""
_NARROW: Final = (0.05, 0.09, 0.11, 0.11, 0.11)
"""And the misses on these."""
LEVELS: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
_HELD: Final = 0.92
"""The share of the fitted misses that an interval holds, for 0.9 of what comes: half a standard error of a share of
fifty repositories is added, because what comes is from others."""
_BELOW: Final = (0.4, 0.5, 0.6, 0.7)
"""The shares of the rest that may be below the interval; the one with the shortest interval is taken."""
REFUSED: Final = 0.12
"""The share of the curves, cut at a quarter, that is too hard to forecast."""
_TYPICAL: Final = 0.1
"""Misses up to this share of the whole improvement count fully, larger ones less and less."""
_USUAL: Final = 0.8
"""The quantile of the miss that the difficulty predicts."""
_PARTS: Final = 5


@dataclass(frozen=True)
class _Table:
    done: Floats
    share: Floats
    places: Floats
    target: Floats
    """The final value, relative to the recent level and in ranges so far."""
    whole: Floats
    """The whole improvement in ranges so far."""
    weight: Floats
    part: npt.NDArray[np.int64]


def fold_of(group: str, folds: int) -> int:
    """Return the fold of a repository: the same in each run."""
    return zlib.crc32(group.encode()) % folds


def fit(cases: Sequence[Case]) -> Fitted:
    """Return constants from these cases.

    Misses that set the width are of repositories that neither the middle nor the difficulty was fitted on.
    """
    cases = [case for case in cases if not case.why]
    table = _table(cases)
    places = _places(table, np.ones(len(cases), bool))
    middle = np.empty(len(cases))
    for part in range(_PARTS):
        here = table.part == part
        middle[here] = _middle(table, _places(table, ~here))[here]
    difficulty = np.array([case.signs.difficulty(at) for case, at in zip(cases, middle, strict=True)])
    miss = table.target - middle
    size = np.log(np.abs(miss) + SMALLEST)
    weights = _quantile_regression(difficulty, size, table.weight)
    usual = np.empty(len(cases))
    for part in range(_PARTS):
        here = table.part == part
        usual[here] = difficulty[here] @ _quantile_regression(
            difficulty[~here], size[~here], table.weight[~here]
        )
    usual = np.exp(usual)
    reach = np.array([case.signs.reach for case in cases])
    hardest = float(np.quantile((usual / reach)[table.share == 0.25], 1 - REFUSED))
    given = usual <= hardest * reach
    usual = np.array([case.signs.usual_miss(one) for case, one in zip(cases, usual, strict=True)])
    train = np.array([case.train is None for case in cases])
    known = np.array([case.signs.known for case in cases])
    groups = np.array([case.series.group for case in cases])
    rows = {
        kind: [
            _misses(miss[near] / usual[near], groups[near])
            for node, window in zip(NODES, _NARROW, strict=True)
            for near in [given & train & (known == kind) & (np.abs(table.done - node) <= window)]
        ]
        for kind in (True, False)
    }
    return Fitted(
        done=NODES,
        places=tuple(_rounded(row) for row in places),
        difficulty=_rounded(weights),
        hardest=round(hardest, 3),
        levels=LEVELS,
        known=tuple(_rounded(row) for row in rows[True]),
        unknown=tuple(_rounded(row) for row in rows[False]),
        held_out=_held_out(table, given & ~train, miss / usual, known, rows),
    )


def _misses(relative: Floats, groups: npt.NDArray[np.str_]) -> Floats:
    """Return the ends of the shortest interval that holds enough, and the quantiles; repositories count equally.

    What a forecast is asked about is a run of another repository: one draw among repositories, and not among runs.
    """
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(relative)
    weights = 1.0 / count[place][order]
    reached = (np.cumsum(weights) - 0.5 * weights) / weights.sum()

    def at(*levels: float) -> Floats:
        return np.interp(levels, reached, relative[order])

    ends = [at((1 - _HELD) * below, (1 - _HELD) * below + _HELD) for below in _BELOW]
    return np.concatenate([min(ends, key=np.ptp), at(*LEVELS)])


def _held_out(
    table: _Table,
    used: npt.NDArray[np.bool_],
    relative: Floats,
    known: npt.NDArray[np.bool_],
    rows: Mapping[bool, Sequence[Floats]],
) -> float:
    """Return how many times wider the interval of a validation loss has to be to hold 9 of 10."""
    needed = []
    for at in np.flatnonzero(used & (table.share >= 0.25) & (table.share <= 0.75)):
        low, high = (
            np.interp(table.done[at], NODES, [row[end] for row in rows[bool(known[at])]]) for end in (0, 1)
        )
        needed.append(max(relative[at] / high, relative[at] / low))
    return round(max(1.0, float(np.quantile(needed, 0.9))), 3) if needed else 1.0


def _table(cases: Sequence[Case]) -> _Table:
    series: dict[str, set[str]] = {}
    for case in cases:
        series.setdefault(case.series.group, set()).add(case.series.name + case.series.metric)
    signs = [case.signs for case in cases]
    unit = np.array([sign.unit for sign in signs])
    return _Table(
        done=np.array([sign.done for sign in signs]),
        share=np.array([case.share for case in cases]),
        places=np.array([sign.places() for sign in signs]),
        target=np.array([case.series.final - case.signs.level for case in cases]) / unit,
        whole=np.maximum(np.array([case.series.improvement for case in cases]) / unit, 0.05),
        # A repository with many series is not so many times the evidence.
        weight=np.array([len(series[case.series.group]) ** -0.5 for case in cases]),
        part=np.array([fold_of("part " + case.series.group, _PARTS) for case in cases]),
    )


def _places(table: _Table, used: npt.NDArray[np.bool_]) -> list[Floats]:
    """Return for each node weights of the simple forecasts that are near to equal ones."""
    count = table.places.shape[1]
    before = np.array([1 / MOVES] * MOVES + [0.0] * (count - MOVES))
    found = []
    for node, window in zip(NODES, _WINDOWS, strict=True):
        near = used & (np.abs(table.done - node) <= window)
        shapes, target = table.places[near], table.target[near]
        pull = np.where(before > 0, 0.03, 0.003) * float(np.sum(table.weight[near]))
        weights = before.copy()
        for _ in range(60):
            miss = np.maximum(np.abs(target - shapes @ weights) / table.whole[near], 1e-3)
            each = table.weight[near] / (miss * (1 + miss / _TYPICAL)) / table.whole[near] ** 2
            left = shapes.T @ (each[:, None] * shapes) + np.diag(pull)
            weights = np.linalg.solve(left, shapes.T @ (each * target) + pull * before)
        found.append(weights)
    return found


def _middle(table: _Table, rows: Sequence[Floats]) -> Floats:
    at = np.stack([np.interp(table.done, NODES, column) for column in np.array(rows).T], axis=1)
    return np.asarray((table.places * at).sum(axis=1))


def _quantile_regression(shapes: Floats, target: Floats, weight: Floats) -> Floats:
    pull = np.full(shapes.shape[1], 0.003 * float(np.sum(weight)))
    pull[0] *= 0.001
    weights: Floats = np.zeros(shapes.shape[1])
    for _ in range(60):
        miss = target - shapes @ weights
        each = weight * np.where(miss > 0, _USUAL, 1 - _USUAL) / np.maximum(np.abs(miss), 1e-3)
        left = shapes.T @ (each[:, None] * shapes) + np.diag(pull)
        weights = np.asarray(np.linalg.solve(left, shapes.T @ (each * target)), dtype=np.float64)
    return weights


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 3) for value in values)
