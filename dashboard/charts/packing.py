"""What charts that Plotly draws have in common: the frame, and wall time in local time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from toolkit.telemetry.runs.store import Floats

FRAME: Final = {"hovermode": "closest", "margin": {"l": 8, "r": 8, "t": 8, "b": 8}}
"""The part of a layout that all of them have."""
Window = tuple[float, float]
"""A range of the x axis."""


def x_values(values: Floats, axis: str) -> Floats:
    """Return x values as the chart needs them: wall time in milliseconds of local time."""
    if axis != "time" or not len(values):
        return values
    return (values + _local_offset(float(values[0]))) * 1000.0


def window_from_chart(view: Sequence[float], axis: str) -> Window:
    """Return the x range of a run from the range that the browser reported."""
    low, high = float(min(view)), float(max(view))
    if axis == "time":
        offset = _local_offset(low / 1000.0)
        return low / 1000.0 - offset, high / 1000.0 - offset
    return low, high


def _local_offset(at: float) -> float:
    """Return the local UTC offset at `at`: it differs between summer and winter."""
    try:
        return float(time.localtime(at).tm_gmtoff)
    except (OverflowError, OSError, ValueError):
        return 0.0
