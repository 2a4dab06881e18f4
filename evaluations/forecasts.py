"""How often the forecast of a final loss is right: open curves with repositories left out, and made curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evaluations.figures import ROOT, Options, made_by, say, table
from evaluations.forecast_fit import SHARES, fit, fold_of
from evaluations.forecast_series import Case, Series, cases_of, open_series, series_of
from evaluations.made_curves.file import made_runs
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
_SCHEDULES: Final[dict[str, Callable[[Case], bool]]] = {
    "the lr falls, known": lambda case: case.signs.known and case.signs.fall > 0.01,
    "the lr is constant so far": lambda case: case.signs.known and case.signs.fall <= 0.01,
    "the rest of the lr is not known": lambda case: not case.signs.known,
}


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


def run(options: Options) -> str:
    """Return the figures; with `fit`, write the constants that were fitted on all open curves."""
    say("how often the forecast of a final loss is right")
    series = open_series(options.corpus)[: _QUICK if options.quick else None]
    outcomes, fitted = left_out(series)
    if options.fit:
        CONSTANTS.write_text(source_of(fitted), encoding="utf-8")
    train, val = (_of(outcomes, metric) for metric in ("train_loss", "val_loss"))
    made = [
        one
        for run in made_runs()[: _QUICK if options.quick else None]
        if run.is_clean
        for one in series_of(run.id, run.family, run.records())
    ]
    groups = {
        "training loss": train,
        **{
            f"training loss, {name}": [one for one in train if is_it(one.case)]
            for name, is_it in _SCHEDULES.items()
        },
        "validation loss": val,
        "made curves without a fault, constants of the open ones": with_constants(made, fitted),
    }
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
            _chances(outcomes),
            f"Refused most often: {_refusals(outcomes)}.",
        ]
    )


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
            if out and case.share in CUTS
        ]
    return found, fit(cases)


def with_constants(series: Sequence[Series], fitted: Fitted = FITTED) -> list[Outcome]:
    """Forecast each case with the constants as they are."""
    return [_outcome(case, fitted) for case in cases_of(series, CUTS)]


def _outcome(case: Case, fitted: Fitted) -> Outcome:
    said = forecast_curve(case.series.metric, case.curve, case.plan, other=case.train, fitted=fitted)
    return Outcome(case, said, "") if isinstance(said, Forecast) else Outcome(case, None, said.why)


def _heading(series: Sequence[Series]) -> str:
    train = [one for one in series if one.metric == "train_loss"]
    return (
        f"{len(train)} training losses of {len({one.group for one in train})} repositories and "
        f"{len(series) - len(train)} validation losses, cut after a share of their records. All constants are fitted "
        f"without the repository under test ({FOLDS} folds). The final value is the median of the last 5 % of the "
        "records; errors are in units of the run's whole improvement. The last recorded step counts as the planned end."
    )


def _of(outcomes: Iterable[Outcome], metric: str) -> list[Outcome]:
    return [one for one in outcomes if one.case.series.metric == metric]


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    cells: list[list[str]] = []
    for cut in CUTS:
        here = [one for one in outcomes if one.case.share == cut]
        said = [one for one in here if one.said is not None]
        error, last = (
            float(np.median(errors)) if errors else np.nan
            for errors in (
                [one.error for one in said],
                [one.case.miss_of_last / one.case.series.improvement for one in said],
            )
        )
        holds = np.mean([one.holds for one in said]) if said else np.nan
        refused = 1 - len(said) / max(1, len(here))
        cells.append(
            [str(len(here)), f"{refused:.2f}", f"{holds:.2f}", f"{error:.3f}", f"{error / last:.2f}"]
        )
    return [name, *("/".join(column) for column in zip(*cells, strict=True))]


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


def _refusals(outcomes: Sequence[Outcome]) -> str:
    reasons: dict[str, int] = {}
    for one in outcomes:
        if one.why:
            reason = one.why.replace(one.case.series.metric, "a loss").replace("the training loss", "a loss")
            reasons[reason] = reasons.get(reason, 0) + 1
    most = sorted(reasons.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{reason} ({count} of {len(outcomes)})" for reason, count in most)


def source_of(fitted: Fitted) -> str:
    """Return constants.py with these constants."""
    lines = [
        '"""What was fitted on open training curves.',
        "",
        f"Written by {made_by('forecasts')}.",
        '"""',
        "",
        "from typing import Final",
        "",
        "from toolkit.telemetry.forecasts.series import Fitted",
        "",
        "FITTED: Final = Fitted(",
        f"    done={fitted.done},",
        *_constants("places", fitted.places),
        f"    difficulty={fitted.difficulty},",
        f"    hardest={fitted.hardest},",
        f"    levels={fitted.levels},",
        *_constants("known", fitted.known),
        *_constants("unknown", fitted.unknown),
        f"    held_out={fitted.held_out},",
        ")",
        "",
    ]
    return "\n".join(lines)


def _constants(name: str, rows: Sequence[tuple[float, ...]]) -> list[str]:
    return [f"    {name}=(", *(f"        {row}," for row in rows), "    ),"]
