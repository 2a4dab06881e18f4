"""Curves whose end is known, cut before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from evaluations.curves import made_runs, made_sweeps, records_of, splits_of
from toolkit.telemetry.forecasts.curve import FEWEST, refusal
from toolkit.telemetry.forecasts.schedule import rest_of_schedule
from toolkit.telemetry.forecasts.series import Curve, Plan
from toolkit.telemetry.forecasts.signs import Signs, signs_of

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
        by_end = sorted(sweep.runs, key=lambda run: median(run.columns["val_loss"][-3:] or (math.inf,)))
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
            signs = signs_of(curve, plan, np.array([now]))
            train = _until(one.train, now)
            why = refusal(one.metric, curve, plan)
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
