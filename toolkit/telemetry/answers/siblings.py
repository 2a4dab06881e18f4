"""What the other runs of a sweep show about the difference of two: what seeds alone do, and what each setting did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from toolkit.telemetry.answers.repeats import Result, groups_of, made_by, result_of, setting_name
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, VAL_LOSS, signal_of
from toolkit.telemetry.runfolder.key_values import USUAL_NAMES
from toolkit.telemetry.runs.formatting import short_number
from toolkit.telemetry.runs.settings import as_number
from toolkit.telemetry.runs.statistics import Floats, student_t
from toolkit.telemetry.runs.store import RunCard
from toolkit.telemetry.runs.sweep.columns import Column, columns_of

SEEDS: Final = "seeds alone"
_FEWEST: Final = 2
"""So many degrees of freedom a variance needs."""
_AS_SEEDS: Final = 2.0
_MOST_LEVELS: Final = 3
"""A number with more values than these is fitted with a curve."""
_SPREAD: Final = 4.0
"""Numbers so many times apart are compared by their ratio, as learning rates and widths are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of the final difference of two runs one thing explains."""

    what: str
    size: float | None = None
    """From the first run to the second; None where it is not separable, and for seeds, which may do either."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval; None where there is none."""
    note: str = ""

    @property
    def text(self) -> str:
        """What it explains, in words."""
        if self.low is None or self.high is None:
            return f"{self.what}: {self.note}"
        size = "" if self.size is None else f"{_signed(self.size)}, "
        return f"{self.what}: {size}{_signed(self.low)} to {_signed(self.high)}{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The final difference of two runs, and what explains how much of it."""

    metric: str
    difference: float
    shares: Sequence[Share]
    rests_on: str

    @property
    def sentence(self) -> str:
        """All of it, in words."""
        parts = "; ".join(share.text for share in self.shares)
        size = _signed(self.difference)
        return f"Of the difference of {size} in the last {self.metric}, by {self.rests_on}: {parts}."


def explained(places: Sequence[Path], cards: Sequence[RunCard]) -> Explained | None:
    """Return what explains the difference of the runs at two places, by the others; None where these are too few."""
    paths = [card.path for card in cards]
    if not all(place in paths for place in places):
        return None
    pair = [cards[paths.index(place)] for place in places]
    both = [name for name in pair[0].evaluations if name in pair[1].evaluations]
    order = [VAL_LOSS, None, LOSS]
    metric = min(
        both, key=lambda name: order.index(known if (known := signal_of(name)) in order else None), default=""
    )
    runs = [result_of(card, metric) for card in cards if metric in card.evaluations and not card.live]
    a, b = (next((run for run in runs if run.key == f"{card.place} {card.id}"), None) for card in pair)
    return None if a is None or b is None else explain(a, b, runs, metric)


def explain(a: Result, b: Result, runs: Sequence[Result], metric: str) -> Explained | None:
    """Return how much of the difference of two of the `runs` their seeds and each of their settings explain."""
    runs = [run for run in runs if run.value is not None and math.isfinite(run.value)]
    if a not in runs or b not in runs:
        return None
    group_of = groups_of(runs)
    groups: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        groups[group_of[run.key]].append(run.value or 0.0)
    freedom = len(runs) - len(groups)
    squares = sum((value - fmean(group)) ** 2 for group in groups.values() for value in group)
    shares = []
    if freedom >= _FEWEST and a.seed != b.seed:
        far = student_t(freedom) * math.sqrt(2.0 * squares / freedom)
        shares.append(Share(what=SEEDS, low=-far, high=far))
    # One row for each group, as its runs say the same about the settings.
    rows = list({group_of[run.key]: run for run in runs}.values())
    made = made_by(rows)
    columns, _ = columns_of([made[run.key] for run in rows])
    both = [
        next(at for at, row in enumerate(rows) if group_of[row.key] == group_of[run.key]) for run in (a, b)
    ]
    shares += _of_settings(columns, both, [groups[group_of[row.key]] for row in rows], squares, freedom)
    if not shares or len(runs) < 4:
        return None
    rests_on = f"{len(runs)} runs in {len(groups)} groups of equal settings"
    return Explained(
        metric=metric, difference=(b.value or 0.0) - (a.value or 0.0), shares=shares, rests_on=rests_on
    )


def _of_settings(
    columns: Sequence[Column],
    both: Sequence[int],
    groups: Sequence[Sequence[float]],
    squares: float,
    freedom: int,
) -> list[Share]:
    """Fit the means of the groups by all settings that vary, and return the share of each that differs."""
    means, counts = np.array([fmean(group) for group in groups]), np.array([len(group) for group in groups])
    parts = [_part(column) for column in columns]
    design = np.column_stack([np.ones(len(means)), *parts])
    weights = np.sqrt(counts)[:, None]
    inverse = np.linalg.pinv(design * weights)
    slopes = inverse @ (means * weights[:, 0])
    left = len(means) - int(np.linalg.matrix_rank(design))
    rest = float(np.sum((weights[:, 0] * (means - design @ slopes)) ** 2))
    if freedom >= _FEWEST and rest * freedom <= _AS_SEEDS * squares * left:
        # The fit is off by no more than seeds are: they tell its noise as well.
        rest, left = rest + squares, left + freedom
    spread = math.sqrt(rest / left) if left >= _FEWEST else None
    found, begin = [], 1
    for column, part in zip(columns, parts, strict=True):
        contrast = np.zeros(design.shape[1])
        end = begin + part.shape[1]
        contrast[begin:end], begin = part[both[1]] - part[both[0]], end
        if not contrast.any():
            continue
        # A rate in the settings is logged as well, by its usual name or another one.
        names = list(dict.fromkeys(USUAL_NAMES.get(name, name) for name in map(setting_name, column.keys)))
        what = " and ".join(names)
        known = np.allclose(contrast @ inverse @ (design * weights), contrast, atol=1e-8)
        if spread is None or not known:
            other = f"not separable: {len(groups)} groups for {len(columns)} settings that vary"
            found.append(Share(what=what, note=other))
            continue
        size = float(contrast @ slopes)
        far = student_t(left) * spread * float(np.linalg.norm(contrast @ inverse))
        together = " (they changed together)" if len(names) > 1 else ""
        found.append(Share(what=what, size=size, low=size - far, high=size + far, note=together))
    return found


def _part(column: Column) -> Floats:
    """Return a setting as columns of a fit: a number as a parabola, else its levels."""
    numbers = [as_number(value) for value in column.values]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers) and len(set(known)) > _MOST_LEVELS:
        values = np.array(known, dtype=float)
        values = np.log(values) if min(known) > 0 and max(known) >= _SPREAD * min(known) else values
        values = (values - values.mean()) / (values.std() or 1.0)
        return np.column_stack([values, values**2])
    levels = np.array([str(value) for value in column.values])
    return np.column_stack([levels == level for level in sorted(set(levels))[1:]]).astype(float)


def _signed(number: float) -> str:
    return f"{'+' if number > 0 else ''}{short_number(number)}"
