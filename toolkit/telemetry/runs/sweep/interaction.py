"""Where the best value of a setting moves with another setting."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toolkit.telemetry.runs import statistics as stats
from toolkit.telemetry.runs.settings import setting_text
from toolkit.telemetry.runs.sweep.columns import Column, groups_of, number_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two settings of which one's effect depends on the other, beyond chance."""

    keys: tuple[str, str]
    p: float
    moves: Literal["lower", "higher"] | None = None
    """Where the best value of the first goes as the second becomes higher; None if neither is so."""
    best: tuple[tuple[str, str], ...] = ()
    """A value of the second, and the best one of the first with it; empty if that is the same for all."""


def interaction_of(one: Column, other: Column, costs: Sequence[float], p: float) -> Interaction:
    """Return what the settings of runs with these costs do together; a number comes first, with the most values."""
    one, other = sorted((one, other), key=lambda column: -len(set(column.numbers or ())))
    keys = (one.keys[0], other.keys[0])
    groups = groups_of(other)
    if other.numbers is not None:
        groups = [groups[0], groups[-1]]
    found: list[tuple[str, Any]]
    if one.numbers is None:
        found = [(label, _best_level(one, rows, costs)) for label, rows in groups]
    else:
        found = list(_best_numbers(one, other, groups, costs))
    best = [(label, value) for label, value in found if value is not None]
    if len({value for _, value in best}) < 2:
        return Interaction(keys=keys, p=p)
    texts = tuple((label, _text(one, value)) for label, value in best)
    if other.numbers is None or one.numbers is None:
        return Interaction(keys=keys, p=p, best=texts)
    return Interaction(keys=keys, p=p, best=texts, moves="lower" if best[1][1] < best[0][1] else "higher")


def _text(column: Column, value: float | str) -> str:
    return value if isinstance(value, str) else number_text(column, value)


def _best_level(column: Column, rows: Sequence[int], costs: Sequence[float]) -> str | None:
    by_level: dict[str, list[float]] = {}
    for row in rows:
        if column.values[row] is not None:
            by_level.setdefault(setting_text(column.values[row]), []).append(costs[row])
    medians = {level: statistics.median(found) for level, found in by_level.items() if len(found) > 1}
    return min(medians, key=lambda level: medians[level]) if len(medians) > 1 else None


def _best_numbers(
    one: Column, other: Column, groups: Sequence[tuple[str, Sequence[int]]], costs: Sequence[float]
) -> list[tuple[str, float]]:
    """Return the best tried number with each group of the other setting, by a parabola whose slope it changes."""
    numbers = np.array(one.numbers)
    other_known = np.array([value is not None for value in other.values])
    rows = np.flatnonzero(~np.isnan(numbers) & other_known)
    if len(rows) < 4:
        return []
    tried = np.unique(numbers[rows])
    # Equal steps for the values that were tried, so that a log scale needs no transform.
    places = np.linspace(-1.0, 1.0, len(tried))
    x = places[np.searchsorted(tried, numbers[rows])]
    if other.numbers is not None:
        ranks = stats.mid_ranks(np.array(other.numbers)[rows])
        z = ((ranks - ranks.mean()) / len(ranks))[:, None]
    else:
        z = np.array([[float(row in set(group)) for _, group in groups[1:]] for row in rows])
    scores = stats.scored(np.array(costs)[rows])
    design = np.column_stack([np.ones(len(rows)), x, x**2, z, z**2, x[:, None] * z])
    weights = np.linalg.lstsq(design, scores, rcond=None)[0]
    columns = z.shape[1]
    slopes = weights[3 + 2 * columns :]
    found: list[tuple[str, float]] = []
    at = {int(row): place for place, row in enumerate(rows)}
    for label, group in groups:
        inside = [at[row] for row in group if row in at]
        if not inside:
            continue
        slope = float(weights[1] + np.median(z[inside], axis=0) @ slopes)
        found.append((label, float(tried[np.argmin(slope * places + weights[2] * places**2)])))
    return found
