"""How often the forecast of a final loss is right: open curves with repositories left out, and made curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evaluations.figures import ROOT, Options, say, table, write_constants
from evaluations.forecast_fit import SHARES, fit, fold_of
from evaluations.forecast_series import Case, Series, cases_of, made_series, open_series
from toolkit.telemetry.forecasts.constants import FITTED
from toolkit.telemetry.forecasts.curve import Forecast, forecast_curve
from toolkit.telemetry.forecasts.series import Fitted

PAGE: Final = "answers.md"
CONSTANTS: Final = ROOT / "toolkit" / "telemetry" / "forecasts" / "constants.py"
FOLDS: Final = 10
CUTS: Final = (0.25, 0.5, 0.75)
_QUICK: Final = 100
_BINS: Final = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_OFFSETS: Final = (-0.3, -0.1, -0.03, 0.0, 0.05)
"""Values for which `chance_below` is checked: so many ranges from the recent level."""


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
        of_train = [one for one in made if one.metric == "train_loss" and one.lr is not None]
        groups[f"made: {schedule}"] = with_constants(of_train, fitted)
        if schedule in ("constant", "wsd"):
            # Of the others the recorded rates alone say what comes.
            bare = [replace(one, settings={}) for one in of_train]
            groups[f"… {schedule}, not named by the settings"] = with_constants(bare, fitted)
    heads = [
        "cut at 25/50/75 %",
        "cases",
        "refused",
        "90 % interval holds",
        "median error",
        "of the last value's",
    ]
    rows = [_row(name, group) for name, group in groups.items()]
    return "\n\n".join(
        [
            _heading(series),
            table(heads, rows),
            _expected(_of(far, "train_loss")),
            _chances(outcomes),
        ]
    )


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


def with_constants(series: Sequence[Series], fitted: Fitted = FITTED) -> list[Outcome]:
    """Forecast each case with the constants as they are."""
    return [_outcome(case, fitted) for case in cases_of(series, CUTS)]


def _outcome(case: Case, fitted: Fitted) -> Outcome:
    said = forecast_curve(case.series.metric, case.curve, case.plan, other=case.train, fitted=fitted)
    return Outcome(case, said if isinstance(said, Forecast) else None)


def _heading(series: Sequence[Series]) -> str:
    train = [one for one in series if one.metric == "train_loss"]
    return (
        f"{len(train)} training losses of {len({one.group for one in train})} repositories and "
        f"{len(series) - len(train)} validation losses, cut after a share of their records. All constants are fitted "
        f"without the repository under test ({FOLDS} folds). The final value is the median of the last 5 % of the "
        "records; errors are in units of the run's whole improvement. The last recorded step counts as the planned "
        "end. Made: training losses of small trainings without a fault and of the better halves of the made sweeps."
    )


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


def _chances(outcomes: Sequence[Outcome]) -> str:
    """Return how often the final value was below a value that was said to be passed with some chance."""
    pairs = [
        (one.said.chance_below(value), float(one.case.series.final < value))
        for one in outcomes
        if one.said is not None
        for value in (one.case.signs.level + offset * one.case.signs.unit for offset in _OFFSETS)
    ]
    chances, came = np.array(pairs).T
    said = []
    for low, high in itertools.pairwise(_BINS):
        here = (chances >= low) & ((chances < high) | (high == 1.0))
        if here.any():
            said.append(f"{chances[here].mean():.0%}: {came[here].mean():.0%} of {here.sum()}")
    return f"How likely a value is passed, said and come: {'; '.join(said)}."
