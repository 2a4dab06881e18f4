"""How often the forecast of a final loss is right: open curves with repositories left out, and made curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.forecast_eval.fit import SHARES, fit, fold_of
from benchmarks.forecast_eval.series import Case, Series, cases_of, open_series, series_of
from benchmarks.made_curves.file import CURVES, made_runs
from toolkit.telemetry.forecasts.constants import FITTED
from toolkit.telemetry.forecasts.curve import Forecast, forecast_curve
from toolkit.telemetry.forecasts.series import Fitted

FOLDS: Final = 10
CUTS: Final = (0.25, 0.5, 0.75)
SHOWN: Final = (0.15, *CUTS, 0.9)
_BINS: Final = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_ABOUT_MADE: Final = (
    "Small trainings of seconds: nothing was fitted on them. They are noisier than the open curves, and a fault after "
    "the cut moves the end, so more is refused, intervals are wider, and with faults they hold less often.\n\n"
)
_OFFSETS: Final = (-0.3, -0.1, -0.03, 0.0, 0.05)
"""Values for which `chance_below` is checked: so many ranges from the recent level."""


@dataclass(frozen=True)
class Outcome:
    """What a forecast said of a case, and what came."""

    case: Case
    said: Forecast | None
    """None where it was refused."""
    why: str

    @property
    def holds(self) -> bool:
        """Whether the final value is in the interval."""
        return self.said is not None and self.said.low <= self.case.series.final <= self.said.high

    @property
    def error(self) -> float:
        """Return how far off the middle is, in whole improvements."""
        assert self.said is not None
        return abs(self.said.middle - self.case.series.final) / self.case.series.improvement

    @property
    def width(self) -> float:
        """Return the width of the interval in whole improvements."""
        assert self.said is not None
        return (self.said.high - self.said.low) / self.case.series.improvement


def left_out(series: Sequence[Series]) -> tuple[list[Outcome], Fitted]:
    """Forecast each case with constants from the other repositories; return also the constants from all."""
    cases = list(cases_of(series, SHARES))
    found = []
    for fold in range(FOLDS):
        away = [fold_of(case.series.group, FOLDS) == fold for case in cases]
        fitted = fit([case for case, out in zip(cases, away, strict=True) if not out])
        found += [
            _outcome(case, fitted)
            for case, out in zip(cases, away, strict=True)
            if out and case.share in SHOWN
        ]
    return found, fit(cases)


def with_constants(series: Sequence[Series], fitted: Fitted = FITTED) -> list[Outcome]:
    """Forecast each case with the constants as they are."""
    return [_outcome(case, fitted) for case in cases_of(series, CUTS)]


def _outcome(case: Case, fitted: Fitted) -> Outcome:
    said = forecast_curve(case.series.metric, case.curve, case.plan, other=case.train, fitted=fitted)
    return Outcome(case, said, "") if isinstance(said, Forecast) else Outcome(case, None, said.why)


def made_series() -> list[tuple[bool, Series]]:
    """Return the losses of the made curves, each with whether its run is clean."""
    if not CURVES.exists():
        return []
    return [
        (run.is_clean, series)
        for run in made_runs()
        for series in series_of(run.id, run.family, run.records())
    ]


def run(corpus: Path) -> tuple[str, Fitted]:
    """Return the part of the figures, and constants fitted on all open curves."""
    series = open_series(corpus)
    outcomes, fitted = left_out(series)
    parts = [_heading(series)]
    for metric, title in (("train_loss", "Training loss"), ("val_loss", "Validation loss")):
        parts.append(f"### {title}, open curves\n\n{_table(_of(outcomes, metric))}")
    parts.append(
        "### Training loss by what is known of the schedule\n\n" + _by_schedule(_of(outcomes, "train_loss"))
    )
    parts.append("### What was refused\n\n" + _refusals(outcomes))
    parts.append("### How likely a value is passed\n\n" + reliability(outcomes))
    made = made_series()
    if made:
        parts.append(
            "### Made curves, with the constants of the open curves\n\n"
            + _ABOUT_MADE
            + _of_made(made, fitted)
        )
    return "\n\n".join(parts), fitted


def _heading(series: Sequence[Series]) -> str:
    train = [one for one in series if one.metric == "train_loss"]
    return (
        "## Where a loss ends\n\n"
        f"{len(train)} training losses of {len({one.group for one in train})} repositories and "
        f"{len(series) - len(train)} validation losses, each with 40 records or more, cut after a share of its "
        "records; what has fewer than 15 records by then is left out.\n"
        f"All constants are fitted without the repository under test ({FOLDS} folds of repositories).\n"
        "The final value is the median of the last 5 % of the records; errors and widths are in units of the run's "
        "whole improvement.\n"
        "The last recorded step counts as the planned end; the rest of the learning rate is worked out from what was "
        "recorded before the cut, never read."
    )


def _of(outcomes: Iterable[Outcome], metric: str) -> list[Outcome]:
    return [one for one in outcomes if one.case.series.metric == metric]


def _table(outcomes: Sequence[Outcome], cuts: Sequence[float] = SHOWN) -> str:
    heads = ["cut at", "curves", "refused", "90 % interval holds (ends below, above)", "median width"]
    heads += ["median error", "of that of the last value", "of that of a power law"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for cut in cuts:
        here = [one for one in outcomes if one.case.share == cut]
        if here:
            lines.append(f"| {cut:.0%} | " + _row(here) + " |")
    return "\n".join(lines)


def _row(outcomes: Sequence[Outcome]) -> str:
    said = [one for one in outcomes if one.said is not None]
    if not said:
        return f"{len(outcomes)} | 100 % | | | | | "
    below = np.mean([one.case.series.final < one.said.low for one in said if one.said])
    above = np.mean([one.case.series.final > one.said.high for one in said if one.said])
    error = float(np.median([one.error for one in said]))
    last, law = (
        float(np.median([getattr(one.case, name) / one.case.series.improvement for one in said]))
        for name in ("miss_of_last", "miss_of_power_law")
    )
    return " | ".join(
        [
            f"{len(outcomes)}",
            f"{1 - len(said) / len(outcomes):.0%}",
            f"{np.mean([one.holds for one in said]):.2f} ({below:.2f}, {above:.2f})",
            f"{np.median([one.width for one in said]):.2f}",
            f"{error:.3f}",
            f"{error / last:.2f} of {last:.3f}",
            f"{error / law:.2f} of {law:.3f}",
        ]
    )


def _by_schedule(outcomes: Sequence[Outcome]) -> str:
    kinds: dict[str, Callable[[Case], bool]] = {
        "falls, known": lambda case: case.signs.known and case.signs.fall > 0.01,
        "constant so far": lambda case: case.signs.known and case.signs.fall <= 0.01,
        "not known": lambda case: not case.signs.known,
    }
    parts = []
    for name, belongs in kinds.items():
        parts.append(
            f"The learning rate {name}:\n\n" + _table([one for one in outcomes if belongs(one.case)], CUTS)
        )
    return "\n\n".join(parts).replace(
        "The learning rate not known", "The rest of the learning rate is not known"
    )


def _refusals(outcomes: Sequence[Outcome]) -> str:
    reasons: dict[str, int] = {}
    here = [one for one in outcomes if one.case.share in CUTS]
    for one in here:
        if one.why:
            reason = one.why.replace(one.case.series.metric, "a loss").replace("the training loss", "a loss")
            reasons[reason] = reasons.get(reason, 0) + 1
    lines = [f"Of {len(here)} forecasts at {', '.join(f'{cut:.0%}' for cut in CUTS)}:", ""]
    lines += [f"- {count}: {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1])]
    return "\n".join(lines)


def reliability(outcomes: Sequence[Outcome]) -> str:
    """Return how often the final value was below a value that was said to be passed with some chance."""
    pairs = []
    for one in outcomes:
        if one.said is not None and one.case.share in CUTS:
            signs = one.case.signs
            for offset in _OFFSETS:
                value = signs.level + offset * signs.unit
                pairs.append((one.said.chance_below(value), float(one.case.series.final < value)))
    chances, came = np.array(pairs).T
    lines = ["| chance said | cases | mean of it | final value was below |", "| --- | --- | --- | --- |"]
    for low, high in itertools.pairwise(_BINS):
        here = (chances >= low) & ((chances < high) | (high == 1.0))
        if here.any():
            lines.append(
                f"| {low:.0%} to {high:.0%} | {here.sum()} | {chances[here].mean():.0%} | {came[here].mean():.0%} |"
            )
    return "\n".join(lines)


def _of_made(made: Sequence[tuple[bool, Series]], fitted: Fitted) -> str:
    parts = []
    for metric in ("train_loss", "val_loss"):
        for clean, name in ((True, "without a fault"), (False, "with a fault")):
            series = [one for is_clean, one in made if is_clean == clean and one.metric == metric]
            if series:
                parts.append(f"`{metric}`, runs {name}:\n\n" + _table(with_constants(series, fitted), CUTS))
    return "\n\n".join(parts)
