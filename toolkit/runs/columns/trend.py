"""Whether the last records of a metric go up or down, or only seem to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from toolkit.runs.store import Floats

_PARTS: Final = 10
"""Neighbouring records are alike: the means of parts are compared, not records."""
_CLEAR: Final = 3.36
"""Student's t with eight degrees of freedom: by chance in one of a hundred cases."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope of the last records."""

    records: int
    mean: float
    change: float
    """From the first to the last of them, along the fitted line."""
    is_clear: bool
    """Whether it is more than noise."""


def trend_of(values: Floats) -> Trend | None:
    """Return the trend of `values`; None for fewer than twenty numbers."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2 * _PARTS:
        return None
    size = float(np.abs(finite).max()) or 1.0
    means = np.array([part.mean() for part in np.array_split(finite / size, _PARTS)])
    x = np.arange(_PARTS) - (_PARTS - 1) / 2
    slope = float((x * means).sum() / (x * x).sum())
    rest = means - means.mean() - slope * x
    error = float(np.sqrt((rest * rest).sum() / (_PARTS - 2) / (x * x).sum()))
    # Rounding alone is no trend.
    is_clear = abs(slope) > max(_CLEAR * error, 1e-9)
    return Trend(len(finite), float(means.mean()) * size, slope * _PARTS * size, is_clear)
