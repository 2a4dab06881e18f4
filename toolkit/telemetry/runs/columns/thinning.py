"""Chooses which points of a curve to draw, without hiding extremes, NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.runs.curve_tiles import FACTOR
from toolkit.telemetry.runs.store import Floats

Indices = npt.NDArray[np.int64]


def level_for(lengths: Iterable[int], most: int) -> int:
    """Return the finest level of a tile at which pieces of these lengths have at most so many buckets together.

    If there are more pieces than buckets, each has one.
    """
    pieces, level = [*lengths], 0
    while sum(-(-one // FACTOR**level) for one in pieces) > max(most, len(pieces)):
        level += 1
    return level


def first_lowest_highest_last(values: Floats, level: int) -> Indices:
    """Return which of `values` to draw: first, lowest, highest and last of each bucket, so all where it has four.

    NaN and infinity are neither lowest nor highest; `runs_of` finds them.
    """
    size = FACTOR**level
    if size <= 4:
        return np.arange(len(values))
    firsts = np.arange(0, len(values), size)
    buckets = np.pad(values, (0, -len(values) % size), constant_values=np.nan).reshape(-1, size)
    finite = np.isfinite(buckets)
    low = firsts + np.where(finite, buckets, np.inf).argmin(axis=1)
    high = firsts + np.where(finite, buckets, -np.inf).argmax(axis=1)
    lasts = np.minimum(firsts + size, len(values)) - 1
    return np.unique(np.concatenate((firsts, low, high, lasts)))


def runs_of(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs in which `mask` is true, as pairs of first and last index."""
    positions = np.flatnonzero(mask)
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) > 1)
    firsts = positions[np.concatenate(([0], breaks + 1))]
    lasts = positions[np.concatenate((breaks, [len(positions) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
