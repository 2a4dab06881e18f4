"""Which run of a sweep is best, and which settings explain that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from toolkit.telemetry.runs import statistics as stats
from toolkit.telemetry.runs.formatting import short_number
from toolkit.telemetry.runs.settings import seed_text
from toolkit.telemetry.runs.sweep.columns import (
    FEW_VALUES,
    Column,
    columns_of,
    configurations,
    equal_settings,
    groups_of,
    number_text,
)
from toolkit.telemetry.runs.sweep.interaction import Interaction, interaction_of
from toolkit.telemetry.runs.sweep.runs import Direction, SweepRun

Verdict = Literal["no runs", "too few runs", "nothing varied", "all equal", "undecided", "decided"]
Shape = Literal["lower", "higher", "middle", "level"]

MIN_RUNS: Final = 8
"""With fewer, no honest statement about settings is possible."""
SURE: Final = 0.02
"""A setting is named if chance alone would make any setting look as good in at most 1 of 50 sweeps."""
SURE_OF_PAIRS: Final = 0.03
"""If none is, the pairs of settings are a second look: in all, chance names something in at most 1 of 20 sweeps."""
RELEVANT: Final = 0.02
"""Of many runs, the tiniest effect is beyond chance: below this share it is not mentioned."""
HINT: Final = 0.15
"""Up to here the first setting is mentioned as a guess."""

_OUTSIDE: Final = 0.1
"""Of the draws of an optimum, so many may have it outside of what was tried."""
_SHUFFLES: Final = 999
_MAX_PAIRED: Final = 14
_MAX_STEPS: Final = 6
_MIN_FAILED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The runs with one value of a setting, or with values in one range."""

    label: str
    runs: int
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A setting, or several that were always changed together, and how much it explains."""

    keys: tuple[str, ...]
    runs: int
    share: float
    """The share of the differences (of ranks) that it explains, from 0 to 1; adjusted for chance."""
    low: float
    high: float
    """The 90 % interval of `share`."""
    p: float
    """The probability that chance alone makes any setting look this good."""
    named: bool
    """Whether it is beyond chance, and not explained by a setting named before."""
    like: str | None = None
    """The named setting that it mostly moved with, if that is why it is not named itself."""
    shape: Shape = "level"
    levels: tuple[Level, ...] = ()
    best: str = ""
    """The label of the best level."""
    optimum: tuple[str, str, str] | None = None
    """Of a number with its best value inside what was tried: that value, and the ends of its 90 % interval."""

    @property
    def name(self) -> str:
        """The setting's name; of several, all of them."""
        return " and ".join(self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """How much two settings explain together."""

    keys: tuple[str, str]
    share: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedSpread:
    """How much runs differ that have equal settings."""

    deviation: float
    """The standard deviation within such groups."""
    groups: int
    runs: int
    by_seed: bool
    """Whether a seed tells them apart; otherwise they are plain repeats."""
    means: tuple[float, float]
    """The lowest and the highest mean of a group."""
    p: float
    """The probability that chance alone makes the groups differ this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What to try next."""

    kind: Literal["at", "beyond", "between", "combine", "vary", "repeat", "more"]
    settings: tuple[tuple[str, str], ...] = ()
    """Names, and a value or an edge of the tried range."""
    below: bool = False
    """For `beyond`: below the lower edge, not above the upper one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """A setting that tells failed runs from others."""

    key: str
    levels: tuple[tuple[str, int, int], ...]
    """Label, failed runs and all runs, the level with the largest failed share first."""
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAnswer:
    """The answer, as data; `sweep_text.paragraph` makes it a text."""

    metric: str
    direction: Direction
    verdict: Verdict
    total: int
    project: str | None = None
    counted: int
    """Runs with a value that were not running and did not fail."""
    configurations: int = 0
    """Different settings among these, seeds aside."""
    running: tuple[str, ...] = ()
    """Names of the runs that are still running; they are not counted."""
    failed: tuple[str, ...] = ()
    stopped: tuple[SweepRun, ...] = ()
    """Runs that were stopped too early to be compared."""
    not_logged: tuple[str, ...] = ()
    without_value: tuple[str, ...] = ()
    best: SweepRun | None = None
    second: SweepRun | None = None
    """The best run with other settings than the best one; any other, where all have the same."""
    lead: float | None = None
    """How much better the best run is than the second; 0 or more."""
    ahead: SweepRun | None = None
    """The best of the runs not counted that is already better than the best counted one."""
    factors: tuple[Factor, ...] = ()
    """Every tested setting: the named ones first, the most important first."""
    joint: Joint | None = None
    """Two settings that are beyond chance only if both are taken into account."""
    interaction: Interaction | None = None
    """The two settings whose effects depend on each other the most, beyond chance."""
    varied: tuple[str, ...] = ()
    """Settings that differ between the counted runs, tested or not."""
    constant: tuple[str, ...] = ()
    """Settings that are equal in all runs, counted or not."""
    partly: tuple[str, ...] = ()
    """Settings that only some runs recorded, all with one value."""
    left_out: tuple[str, ...] = ()
    """Settings that were not tested: another value in nearly every run, or too many settings."""
    seeds: SeedSpread | None = None
    suggestions: tuple[Suggestion, ...] = ()
    failures: Failures | None = None

    @property
    def named(self) -> tuple[Factor, ...]:
        """The settings beyond chance, the most important first."""
        return tuple(factor for factor in self.factors if factor.named)

    @property
    def groups_differ(self) -> bool:
        """Whether repeats show that the settings matter, whichever of them does."""
        return self.seeds is not None and self.seeds.p <= SURE

    @property
    def lead_is_noise(self) -> bool | None:
        """Whether equal settings differ as much as the first two runs do; None if that is unknown."""
        if self.lead is None or self.seeds is None:
            return None
        return self.lead < 2.0 * math.sqrt(2.0) * self.seeds.deviation


def answer(
    runs: Sequence[SweepRun],
    *,
    metric: str,
    direction: Direction = "min",
    project: str | None = None,
) -> SweepAnswer:
    """Return which run is best by `metric`, and which settings explain the differences.

    Runs that are running, failed or have no finite value are counted and named, but nothing is concluded from their
    values. `project` is said if these are the runs of one project of several; empty for those without one. The same
    runs give the same answer.
    """
    done = sorted(
        (run for run in runs if run.state == "done" and run.is_measured),
        key=lambda run: (run.cost(direction), run.key),
    )
    common: dict[str, Any] = {
        "metric": metric,
        "direction": direction,
        "project": project,
        "total": len(runs),
        "counted": len(done),
        "running": tuple(run.name for run in runs if run.state == "running"),
        "failed": tuple(run.name for run in runs if run.state == "failed"),
        "stopped": tuple(run for run in runs if run.state == "stopped"),
        "not_logged": tuple(run.name for run in runs if run.state == "done" and run.value is None),
        "without_value": tuple(
            run.name for run in runs if run.state == "done" and run.value is not None and not run.is_measured
        ),
    }
    if not done:
        return SweepAnswer(verdict="no runs", **common, failures=_failures(runs))
    columns, left_out = columns_of([run.config for run in done])
    constant, partly = equal_settings([run.config for run in runs])
    groups = configurations(columns, len(done))
    same = next(set(rows) for rows in groups if 0 in rows)
    others = [run for place, run in enumerate(done) if place not in same] or done[1:]
    second = next(iter(others), None)
    common.update(
        best=done[0],
        second=second,
        lead=None if second is None else abs(second.number - done[0].number),
        ahead=_ahead(runs, done[0], direction),
        configurations=len(groups),
        varied=tuple(key for column in columns for key in column.keys),
        constant=constant,
        partly=partly,
        left_out=left_out,
        seeds=_seed_spread(done, groups),
        failures=_failures(runs),
    )
    costs = np.array([run.cost(direction) for run in done])
    if not columns:
        verdict: Verdict = "nothing varied" if len(done) > 1 else "too few runs"
    elif len(done) < MIN_RUNS:
        verdict = "too few runs"
    elif costs.min() == costs.max():
        verdict = "all equal"
    else:
        explained = _explain(done, columns, groups, direction)
        verdict = "decided" if any(factor.named for factor in explained["factors"]) else "undecided"
        common.update(explained)
    found = SweepAnswer(verdict=verdict, **common)
    return replace(found, suggestions=_suggestions(done, columns, found))


def is_log_scale(values: Sequence[float]) -> bool:
    """Return whether numbers are better drawn on a logarithmic axis: all above 0, and spread over decades."""
    positive = [value for value in values if value > 0]
    return len(positive) == len(values) and len(set(values)) > 2 and max(positive) >= 30 * min(positive)


# ---------------------------------------------------------------- what explains the differences


def _explain(
    runs: Sequence[SweepRun],
    columns: Sequence[Column],
    groups: Sequence[Sequence[int]],
    direction: Direction,
) -> dict[str, Any]:
    """Return `factors`, `joint` and `interaction` of the answer."""
    costs = np.array([run.cost(direction) for run in runs])
    rows, scores = _rows_to_test(groups, costs)
    settings = [column.setting(rows) for column in columns]
    alone = stats.weigh(settings, scores)
    named, pair = _named(settings, scores, alone)
    order = _by_importance(settings, scores, alone, named)
    if pair is not None:
        order.sort(key=lambda index: index not in pair[0])
    factors = []
    for index in order:
        column, evidence = columns[index], alone[index]
        low, high = stats.share_interval(settings[index], scores[0], evidence)
        levels, best, shape = _levels(runs, column, direction)
        is_inside = index in named and shape == "middle"
        factors.append(
            Factor(
                keys=column.keys,
                runs=sum(value is not None for value in column.values),
                share=evidence.share,
                low=low,
                high=high,
                p=named.get(index, evidence.p),
                named=index in named,
                like=_like(index, columns, settings, alone, named),
                shape=shape,
                levels=levels,
                best=best,
                optimum=_optimum(column, costs) if is_inside else None,
            )
        )
    joint = None
    if pair is not None:
        one, other = sorted(pair[0], key=order.index)
        joint = Joint(keys=(columns[one].keys[0], columns[other].keys[0]), share=pair[1].share, p=pair[1].p)
    interaction = None
    if (found := _interacting(settings, scores, [index for index in order if index in named])) is not None:
        (one, other), p = found
        interaction = interaction_of(columns[one], columns[other], costs.tolist(), p)
    return {"factors": tuple(factors), "joint": joint, "interaction": interaction}


def _rows_to_test(groups: Sequence[Sequence[int]], costs: stats.Floats) -> tuple[list[int], stats.Floats]:
    """Return one row for each configuration, with the mean rank of its runs.

    Runs with equal settings are no independent evidence for a setting. If there are too few configurations, each run
    is a row: the test then is against what seeds alone do.
    """
    if len(groups) < MIN_RUNS:
        return list(range(len(costs))), np.array([stats.scored(costs), stats.bounded(costs)])
    ranks = stats.mid_ranks(costs)
    means = np.array([ranks[rows].mean() for rows in groups])
    medians = np.array([np.median(costs[rows]) for rows in groups])
    return [rows[0] for rows in groups], np.array([stats.scored(means), stats.bounded(medians)])


_Pair = tuple[tuple[int, int], stats.Evidence]


def _named(
    settings: Sequence[stats.Setting], scores: stats.Floats, alone: Sequence[stats.Evidence]
) -> tuple[dict[int, float], _Pair | None]:
    """Return the settings beyond chance, each given those before it, with their p-values.

    If none is, two may be that are judged together; then they are named, and returned with their evidence.
    """
    first = max(range(len(settings)), key=lambda index: (alone[index].p <= SURE, alone[index].share))
    if alone[first].p <= SURE:
        return _more(settings, scores, {first: alone[first].p}), None
    pair = _pair(settings, scores)
    if pair is None:
        return {}, None
    (one, other), evidence = pair
    return _more(settings, scores, {one: evidence.p, other: evidence.p}), pair


def _more(
    settings: Sequence[stats.Setting], scores: stats.Floats, named: dict[int, float]
) -> dict[int, float]:
    for step in range(1, min(_MAX_STEPS, len(settings))):
        rest = [index for index in range(len(settings)) if index not in named]
        known = stats.orthonormal(np.column_stack([settings[index].basis for index in named]))
        if not rest or known.shape[1] > scores.shape[1] // 3:
            break
        left = [stats.without(settings[index], known) for index in rest]
        found = stats.weigh(left, stats.residual(scores, known), used=known.shape[1], seed=step)
        place = min(range(len(rest)), key=lambda at: (found[at].p, -found[at].share))
        if found[place].p > SURE:
            break
        named = {**named, rest[place]: found[place].p}
    return named


def _pair(settings: Sequence[stats.Setting], scores: stats.Floats) -> _Pair | None:
    """Return two settings that explain the differences only if both are taken into account."""
    count = len(settings)
    if count > _MAX_PAIRED:
        return None
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count)]
    fits = [stats.pair_setting(settings[one], settings[other]) for one, other in pairs]
    tested = [
        (pair, fit)
        for pair, fit in zip(pairs, fits, strict=True)
        if fit.basis.shape[1] <= scores.shape[1] // 3
    ]
    found = stats.weigh([fit for _, fit in tested], scores, seed=50)
    sure = [
        (evidence, pair)
        for evidence, (pair, _) in zip(found, tested, strict=True)
        if evidence.p <= SURE_OF_PAIRS
    ]
    if not sure:
        return None
    evidence, both = min(sure, key=lambda item: (item[0].p, -item[0].share))
    return both, evidence


def _by_importance(
    settings: Sequence[stats.Setting],
    scores: stats.Floats,
    alone: Sequence[stats.Evidence],
    named: Mapping[int, float],
) -> list[int]:
    """Return the named settings by what the fit loses without each, then the others by what each explains alone."""

    def lost(index: int) -> float:
        others = [settings[other].fits[alone[other].fit] for other in named if other != index]
        if not others:
            return alone[index].share
        known = stats.orthonormal(np.column_stack(others))
        left = stats.without(settings[index], known).fits[alone[index].fit]
        return float(np.square(left.T @ scores[0]).sum())

    first = sorted(named, key=lost, reverse=True)
    rest = sorted(
        (index for index in range(len(settings)) if index not in named), key=lambda i: -alone[i].share
    )
    return [*first, *rest]


def _like(
    index: int,
    columns: Sequence[Column],
    settings: Sequence[stats.Setting],
    alone: Sequence[stats.Evidence],
    named: Mapping[int, float],
) -> str | None:
    if index in named or alone[index].p > SURE:
        return None
    closest = max(named, key=lambda other: stats.overlap(settings[index], settings[other]), default=None)
    if closest is None or stats.overlap(settings[index], settings[closest]) < 0.3:
        return None
    return columns[closest].keys[0]


def _interacting(
    settings: Sequence[stats.Setting], scores: stats.Floats, named: Sequence[int]
) -> tuple[tuple[int, int], float] | None:
    """Return a named setting and the one on which its effect depends the most, if beyond chance, with the p-value."""
    known = [settings[index].basis for index in named]
    if not named or sum(basis.shape[1] for basis in known) > scores.shape[1] // 3:
        return None
    base = stats.orthonormal(np.column_stack(known))
    pairs = [
        (one, other)
        for place, one in enumerate(named[:2])
        for other in range(len(settings))
        if other not in named[: place + 1]
    ]
    left = [
        stats.without(stats.product_setting(settings[one], settings[other]), base) for one, other in pairs
    ]
    scores = stats.residual(scores, base)
    left_to_explain = float(scores[0] @ scores[0])
    found = stats.weigh(left, scores, used=base.shape[1], seed=100)
    sure = [
        (evidence, pair)
        for evidence, pair in zip(found, pairs, strict=True)
        if evidence.p <= SURE and evidence.share * left_to_explain >= RELEVANT
    ]
    if not sure:
        return None
    evidence, both = max(sure, key=lambda item: item[0].share)
    return both, evidence.p


# ---------------------------------------------------------------- levels


def _levels(
    runs: Sequence[SweepRun], column: Column, direction: Direction
) -> tuple[tuple[Level, ...], str, Shape]:
    """Return the levels with their medians, in order, the label of the best one, and where that is."""
    levels = tuple(
        Level(label=label, runs=len(rows), median=statistics.median(runs[row].number for row in rows))
        for label, rows in groups_of(column)
    )
    sign = 1.0 if direction == "min" else -1.0
    # Of a value that a single run had, little is known.
    solid = [level for level in levels if level.runs > 1] or list(levels)
    best = min(solid, key=lambda level: sign * level.median).label
    known = [level.label for level in levels]
    if column.numbers is None or len(known) < 2:
        return levels, best, "level"
    place = known.index(best)
    return levels, best, "lower" if place == 0 else "higher" if place == len(known) - 1 else "middle"


def _optimum(column: Column, costs: stats.Floats) -> tuple[str, str, str] | None:
    """Return where a parabola through the results has its best value, with its 90 % interval; None if nowhere.

    Through their ranks, so that one diverged run does not decide, and over the logarithm where the values need it.
    """
    numbers = np.array(column.numbers, dtype=np.float64)
    known = np.flatnonzero(np.isfinite(numbers))
    is_log = is_log_scale(numbers[known].tolist())
    at = np.log(numbers[known]) if is_log else numbers[known]
    ranks = stats.mid_ranks(costs[known])
    best = []
    for square, slope, _ in stats.parabolas(at, ranks):
        place = -slope / (2 * square) if square > 0 else math.nan
        best.append(place if at.min() < place < at.max() else math.nan)
    if not best or math.isnan(best[0]) or np.mean(np.isnan(best)) > _OUTSIDE:
        return None
    ends = [best[0], *np.nanquantile(best[1:], (0.05, 0.95))]
    low, high = sorted((short_number(math.exp(end) if is_log else end) for end in ends[1:]), key=float)
    return short_number(math.exp(ends[0]) if is_log else ends[0]), low, high


# ---------------------------------------------------------------- around the best run


def _ahead(runs: Sequence[SweepRun], best: SweepRun, direction: Direction) -> SweepRun | None:
    others = [run for run in runs if run.state != "done" and run.is_measured]
    better = [run for run in others if run.cost(direction) < best.cost(direction)]
    return min(better, key=lambda run: (run.cost(direction), run.key), default=None)


def _seed_spread(runs: Sequence[SweepRun], groups: Sequence[Sequence[int]]) -> SeedSpread | None:
    repeated = [rows for rows in groups if len(rows) > 1]
    if not repeated:
        return None
    squares = freedom = 0.0
    for rows in repeated:
        values = [runs[row].number for row in rows]
        mean = statistics.fmean(values)
        squares += sum((value - mean) * (value - mean) for value in values)
        freedom += len(values) - 1
    seeds = [{seed_text(runs[row].config) for row in rows} for rows in repeated]
    means = [statistics.fmean(runs[row].number for row in rows) for rows in groups]
    return SeedSpread(
        means=(min(means), max(means)),
        p=_chance_of_groups([run.number for run in runs], groups),
        deviation=math.sqrt(squares / freedom),
        groups=len(repeated),
        runs=sum(map(len, repeated)),
        by_seed=all(len(found) > 1 for found in seeds),
    )


def _chance_of_groups(values: Sequence[float], groups: Sequence[Sequence[int]]) -> float:
    """Return the probability that groups differ as much by chance, by permuting their ranks."""
    ranks = stats.mid_ranks(np.array(values))
    group = np.empty(len(values), dtype=np.intp)
    for place, rows in enumerate(groups):
        group[list(rows)] = place
    sizes = np.bincount(group)

    def between(order: stats.Floats) -> float:
        return float((np.bincount(group, order) ** 2 / sizes).sum())

    found, source = between(ranks), np.random.default_rng(0)
    as_far = sum(between(source.permutation(ranks)) >= found for _ in range(_SHUFFLES))
    return (1 + as_far) / (1 + _SHUFFLES)


def _suggestions(
    runs: Sequence[SweepRun], columns: Sequence[Column], found: SweepAnswer
) -> tuple[Suggestion, ...]:
    if found.verdict in ("no runs", "nothing varied", "all equal"):
        return ()
    if found.verdict == "too few runs":
        return (Suggestion(kind="more"),)
    by_keys = {column.keys: column for column in columns}
    suggestions: list[Suggestion] = []
    # The best value of a setting that depends on another is not that at the edge, nor the best one by itself.
    dependent = set(found.interaction.keys) if found.interaction is not None else set()
    for factor in found.named[:3]:
        column = by_keys[factor.keys]
        if column.numbers is not None:
            around = _around(runs, column, factor, found.direction)
            suggestions += [
                one for one in around if one.kind in ("at", "between") or factor.keys[0] not in dependent
            ]
    alone = [factor for factor in found.named[:3] if factor.keys[0] not in dependent]
    combined = _combination([(by_keys[factor.keys], factor) for factor in alone])
    if combined is not None:
        suggestions.append(combined)
    if found.groups_differ and found.verdict == "undecided":
        suggestions.append(Suggestion(kind="vary"))
    elif found.verdict == "undecided" or found.seeds is None or found.lead_is_noise:
        suggestions.append(Suggestion(kind="repeat"))
    return tuple(suggestions[:3])


def _around(
    runs: Sequence[SweepRun], column: Column, factor: Factor, direction: Direction
) -> list[Suggestion]:
    """Return whether to look beyond an edge of what was tried, or around the best value inside."""
    numbers = np.array([number for number in column.numbers or () if not math.isnan(number)])
    if factor.optimum is not None:
        return [Suggestion(kind="at", settings=((column.keys[0], factor.optimum[0]),))]
    different = np.unique(numbers)
    low, high = float(different[0]), float(different[-1])
    best_run = column.numbers[0] if column.numbers else math.nan
    key = column.keys[0]
    if factor.shape in ("lower", "higher"):
        below = factor.shape == "lower"
        edge = low if below else high
        # The best run must be near that edge, the runs at it must be good, and it must not be a natural limit.
        near = best_run <= np.quantile(numbers, 1 / 3) if below else best_run >= np.quantile(numbers, 2 / 3)
        if near and edge not in (0.0, 1.0) and _is_good_at(edge, runs, column, direction):
            return [Suggestion(kind="beyond", settings=((key, number_text(column, edge)),), below=below)]
        return []
    place = int(np.searchsorted(different, best_run))
    if factor.shape == "middle" and len(different) <= 2 * FEW_VALUES and 0 < place < len(different) - 1:
        around = (float(different[place - 1]), float(different[place + 1]))
        edges = tuple((key, number_text(column, value)) for value in around)
        return [Suggestion(kind="between", settings=edges)]
    return []


def _is_good_at(edge: float, runs: Sequence[SweepRun], column: Column, direction: Direction) -> bool:
    """Return whether the runs at an edge of what was tried, at least two, are among the better half."""
    distances = np.abs(np.nan_to_num(np.array(column.numbers), nan=math.inf) - edge)
    at_edge = max(2, len(runs) // 10, int((distances == 0).sum()))
    nearest = np.argsort(distances, kind="stable")[:at_edge].tolist()
    costs = [run.cost(direction) for run in runs]
    return bool(statistics.median(costs[row] for row in nearest) <= statistics.median(costs))


def _combination(factors: Sequence[tuple[Column, Factor]]) -> Suggestion | None:
    """Return the best level of each of the named settings, if no run had them all."""
    if len(factors) < 2:
        return None
    together: set[int] | None = None
    for column, factor in factors:
        rows = next((set(rows) for label, rows in groups_of(column) if label == factor.best), set())
        together = rows if together is None else together & rows
    if together:
        return None
    return Suggestion(kind="combine", settings=tuple((factor.keys[0], factor.best) for _, factor in factors))


# ---------------------------------------------------------------- failed runs


def _failures(runs: Sequence[SweepRun]) -> Failures | None:
    """Return the setting that tells failed runs from others beyond chance."""
    # A run that never logged the metric, such as one of another kind, has not failed.
    ended = [run for run in runs if run.state == "failed" or (run.state == "done" and run.value is not None)]
    failed = [run.state == "failed" or not run.is_measured for run in ended]
    if sum(failed) < _MIN_FAILED or len(failed) - sum(failed) < _MIN_FAILED or len(ended) < MIN_RUNS:
        return None
    columns, _ = columns_of([run.config for run in ended])
    if not columns:
        return None
    every = list(range(len(ended)))
    scores = stats.scored(np.array(failed, dtype=np.float64))
    found = stats.weigh([column.setting(every) for column in columns], scores, seed=200)
    best = max(range(len(columns)), key=lambda index: (found[index].p <= SURE, found[index].share))
    if found[best].p > SURE:
        return None
    levels = [
        (label, sum(failed[row] for row in rows), len(rows)) for label, rows in groups_of(columns[best])
    ]
    levels.sort(key=lambda level: -level[1] / level[2])
    return Failures(key=columns[best].keys[0], levels=tuple(levels), p=found[best].p)
