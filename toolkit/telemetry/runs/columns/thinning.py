"""Downsamples a curve for the screen without hiding extremes, NaN or infinity."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.runs.store import Floats

Indices = npt.NDArray[np.int64]


def bucket_size(points: int, buckets: int) -> int:
    """Return the bucket size: a power of two, so that old buckets rarely change."""
    size = 1
    while points > size * buckets:
        size *= 2
    return size


def select(values: Floats, start: int, size: int) -> Indices:
    """Return which of `values` to draw, in order: first, minimum, maximum and last of each bucket.

    `values` start at index `start` of a longer curve, and buckets start at multiples of `size` of that curve, so that
    appending points never moves an older bucket. Returned indices count from the start of `values`. NaN and infinity
    are never minimum or maximum; `runs_of` finds them. A bucket of at most four points is kept whole.
    """
    count = len(values)
    if size <= 4:
        return np.arange(count, dtype=np.int64)
    head = min(count, -start % size)
    whole = (count - head) // size
    tail = head + whole * size
    parts = [_extremes(values[:head], 0)] if head else []
    if whole:
        parts.append(_extremes_of_rows(values[head:tail].reshape(whole, size), head))
    if tail < count:
        parts.append(_extremes(values[tail:], tail))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _extremes_of_rows(rows: Floats, offset: int) -> Indices:
    finite = np.isfinite(rows)
    if finite.all():
        low, high = rows.argmin(axis=1), rows.argmax(axis=1)
    else:
        low = np.where(finite, rows, np.inf).argmin(axis=1)
        high = np.where(finite, rows, -np.inf).argmax(axis=1)
    last = np.full(len(rows), rows.shape[1] - 1)
    picked = np.stack([np.zeros(len(rows), dtype=np.int64), low, high, last], axis=1)
    picked.sort(axis=1)
    picked += (np.arange(len(rows)) * rows.shape[1] + offset)[:, None]
    flat = picked.ravel()
    keep = np.empty(len(flat), dtype=bool)
    keep[:1] = True
    np.not_equal(flat[1:], flat[:-1], out=keep[1:])
    return flat[keep].astype(np.int64, copy=False)


def _extremes(values: Floats, offset: int) -> Indices:
    if len(values) <= 4:
        return np.arange(offset, offset + len(values), dtype=np.int64)
    return _extremes_of_rows(values.reshape(1, len(values)), offset)


def runs_of(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs in which `mask` is true, as pairs of first and last index."""
    positions = np.flatnonzero(mask)
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) > 1)
    firsts = positions[np.concatenate(([0], breaks + 1))]
    lasts = positions[np.concatenate((breaks, [len(positions) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
