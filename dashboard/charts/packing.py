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


def x_values(times: Floats) -> Floats:
    """Return wall times as the chart needs them: in milliseconds of local time."""
    return (times + _local_offset(float(times[0]))) * 1000.0 if len(times) else times


def window_from_chart(view: Sequence[float]) -> Window:
    """Return the range of wall time from the range that the browser reported."""
    low, high = min(view) / 1000.0, max(view) / 1000.0
    offset = _local_offset(low)
    return low - offset, high - offset


def _local_offset(at: float) -> float:
    """Return the local UTC offset at `at`: it differs between summer and winter."""
    try:
        return float(time.localtime(at).tm_gmtoff)
    except (OverflowError, OSError, ValueError):
        return 0.0
