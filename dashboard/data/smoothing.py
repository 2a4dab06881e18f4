"""A debiased exponential average that can be continued where it stopped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboard.data.run_store import Floats


@dataclass(frozen=True, slots=True)
class Carry:
    """What the points so far weigh: the sum of their weighted values, and of the weights."""

    total: float = 0.0
    weight: float = 0.0


def smooth(values: Floats, past: float, carry: Carry) -> tuple[Floats, Carry]:
    """Return the average behind each of `values`, and what the next call continues from.

    Each point weighs `past` times as much as the one after it, and the weights are divided out, so the first points are
    not pulled towards zero. A value that is no number changes nothing. Continued piece by piece the result is the same.
    """
    if not len(values):
        return values.copy(), carry
    finite = np.isfinite(values)
    clean = values if finite.all() else np.where(finite, values, np.nan)
    means = pd.Series(clean).ewm(alpha=1.0 - past, adjust=True, ignore_na=True).mean().to_numpy()
    seen = np.cumsum(finite)
    faded = np.power(past, seen)
    weights = (1.0 - faded) / (1.0 - past)
    totals = np.where(seen > 0, np.nan_to_num(means), 0.0) * weights + faded * carry.total
    all_weights = weights + faded * carry.weight
    with np.errstate(invalid="ignore"):
        averages = totals / all_weights
    return averages, Carry(float(totals[-1]), float(all_weights[-1]))
