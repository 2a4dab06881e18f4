"""Fit the constants of a forecast on curves whose end is known."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evaluations.forecast_series import Case
from toolkit.telemetry.forecasts.series import Fitted
from toolkit.telemetry.forecasts.signs import MOVES, SMALLEST

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
    hardest = float(np.quantile(usual[table.share == 0.25], 1 - REFUSED))
    given = usual <= hardest
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
