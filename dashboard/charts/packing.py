"""Encodes numbers for Plotly: compactly, and wall time in local time."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.runs.store import Floats, XAxis

Window = tuple[float, float]
"""A range of the x axis."""


def packed(values: Floats) -> dict[str, str] | list[float]:
    """Return numbers in Plotly's binary format, in as few bytes as a screen can resolve."""
    if len(values) < 8:
        # Short lists stay readable; None is a gap.
        return [None if not math.isfinite(value) else value for value in values.tolist()]  # type: ignore[misc]
    data: np.ndarray[Any, Any] = values
    finite = values[np.isfinite(values)]
    if len(finite) == len(values) and np.all(values % 1 == 0) and np.all(np.abs(values) < 2**31):
        data = values.astype("<i4")
        kind = "i4"
    elif len(finite) and _survives_float32(finite):
        with np.errstate(over="ignore"):
            data = values.astype("<f4")
        kind = "f4"
    else:
        data = values.astype("<f8")
        kind = "f8"
    return {"dtype": kind, "bdata": base64.b64encode(data.tobytes()).decode("ascii")}


def packed_grid(values: Floats) -> dict[str, str]:
    """Return numbers of any shape in Plotly's binary format; a screen resolves no more than a float32."""
    data = base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")
    return {"dtype": "f4", "bdata": data, "shape": ", ".join(str(length) for length in values.shape)}


def _survives_float32(finite: Floats) -> bool:
    """Return whether rounding to float32 moves every point by less than a millionth of the y range."""
    largest = float(np.abs(finite).max())
    if largest > 1e38 or (largest and largest < 1e-30):
        return False
    return largest * 6e-8 <= (float(finite.max()) - float(finite.min())) * 1e-6 or not largest


def packed_times(times: Floats) -> dict[str, Any] | None:
    """Return wall times in whole seconds of local time: the first, and the differences as signed integers.

    None if a time is unknown or too far from the one before.
    """
    if not len(times) or not np.isfinite(times).all():
        return None
    seconds = np.floor(x_values(times, "time") / 1000.0)
    steps = np.diff(seconds)
    size = float(np.abs(steps).max()) if len(steps) else 0.0
    for bits in (8, 16, 32):
        if size < 2 ** (bits - 1):
            data = base64.b64encode(steps.astype(f"<i{bits // 8}").tobytes()).decode("ascii")
            return {"from": float(seconds[0]), "bits": bits, "steps": data}
    return None


def x_values(values: Floats, axis: XAxis) -> Floats:
    """Return x values as the chart needs them: wall time in milliseconds of local time."""
    if axis != "time" or not len(values):
        return values
    return (values + _local_offset(float(values[0]))) * 1000.0


def window_from_chart(view: Sequence[float], axis: XAxis) -> Window:
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
