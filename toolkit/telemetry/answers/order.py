"""Whether repeated runs depend on the order in which they were started: they drift, or follow from each other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Final

_DRAWS: Final = 400
_LEVEL: Final = 0.025
"""The chance that independent runs look like either."""
_NEWEST: Final = 400
"""So many runs show it; more take longer."""

Run = tuple[float, float]
"""When a run was started, and its result."""


def depends_on_order(groups: Sequence[Sequence[Run]]) -> str:
    """Return what the repeats show of their order, in words, or an empty text.

    The repeats of each group are drawn in other orders (a permutation test), and this one has to stand out: by how much
    the results rise or fall with the place in time, or by how alike neighbours are.
    """
    order = sorted({start for group in groups for start, _ in group})[-_NEWEST:]
    place = {start: at for at, start in enumerate(order)}
    rows = [sorted((place[start], value) for start, value in group if start in place) for group in groups]
    columns = [[list(column) for column in zip(*row, strict=True)] for row in rows if len(row) > 1]
    places = [[at - fmean(column[0]) for at in column[0]] for column in columns]
    values = [[value - fmean(column[1]) for value in column[1]] for column in columns]
    drift, chain = _drift(places, values), _chain(values)
    source = random.Random(0)
    as_far = as_alike = 0
    for _ in range(_DRAWS):
        for group in values:
            source.shuffle(group)
        as_far += _drift(places, values) >= drift
        as_alike += _chain(values) >= chain
    if as_far < _LEVEL * _DRAWS:
        return "the results of repeated runs drift with the time at which they were started"
    if as_alike < _LEVEL * _DRAWS:
        return "repeated runs are more like the one before them than like others"
    return ""


def alternate(new: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether runs of both groups were started in turns, at least as much as in a random order."""
    sides = [side for _, side in sorted([*((start, 0) for start in new), *((start, 1) for start in best)])]
    turns = sum(before != after for before, after in itertools.pairwise(sides))
    return turns * (len(new) + len(best)) >= 2 * len(new) * len(best)


def _drift(places: Sequence[Sequence[float]], values: Sequence[Sequence[float]]) -> float:
    return abs(
        sum(
            at * value
            for row, group in zip(places, values, strict=True)
            for at, value in zip(row, group, strict=True)
        )
    )


def _chain(values: Sequence[Sequence[float]]) -> float:
    return sum(before * after for group in values for before, after in itertools.pairwise(group))
