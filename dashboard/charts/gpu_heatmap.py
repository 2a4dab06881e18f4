"""Utilization of many GPUs as a heat map: which GPU idles, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dashboard.charts.packing import Window, packed_grid, x_values
from dashboard.charts.palette import color
from toolkit.runs.store import Floats, Series, XAxis

SAMPLES: Final = 2000
"""Buckets to ask of each series: up to this many samples every one counts in the mean of its cell."""
_CELLS: Final = 96
_ROW_PX: Final = 22
_FULL_ROWS: Final = 24
"""With more rows than that they become lower, not the chart higher."""


def gpu_heatmap_height(gpus: int) -> int:
    """Return the height of the heat map in pixels."""
    return 78 + _ROW_PX * min(gpus, _FULL_ROWS)


def gpu_heatmap_figure(
    utilization: Mapping[int, Series], *, axis: XAxis, window: Window | None, revision: str
) -> dict[str, Any] | None:
    """Return the heat map of the utilization by GPU, a row each; None without a sample in the window."""
    points = {gpu: _points(series, window) for gpu, series in utilization.items()}
    if not any(len(x) for x, _ in points.values()):
        return None
    first, width, cells = _cells([x for x, _ in points.values()])
    mean = np.stack([_means(x, y, first, width, cells) for x, y in points.values()])
    middles = first + (np.arange(cells, dtype=np.float64) + 0.5) * width
    xaxis: dict[str, Any] = {
        "type": "date" if axis == "time" else "linear",
        "title": {"text": "step" if axis == "step" else ""},
        "showgrid": False,
        "zeroline": False,
        "uirevision": f"{revision}|{window}",
    }
    if window is not None:
        xaxis["range"] = x_values(np.asarray(window), axis).tolist()
    place = "%{x|%b %-d, %H:%M:%S}" if axis == "time" else "step %{x:,.0f}"
    return {
        "data": [
            {
                "type": "heatmap",
                "name": "GPU utilization",
                "x": x_values(middles, axis).tolist(),
                "y": [str(gpu) for gpu in points],
                "z": packed_grid(mean),
                "zmin": 0,
                "zmax": 100,
                "ygap": 1,
                "colorscale": [[0, color("info", 0.1)], [1, color("info")]],
                "hovertemplate": f"GPU %{{y}}, {place}: mean %{{z:.3~g}} %<extra></extra>",
                "colorbar": {"thickness": 8, "title": {"text": "%"}},
            }
        ],
        "layout": {
            "xaxis": xaxis,
            "yaxis": {
                "title": {"text": "GPU", "standoff": 8},
                "fixedrange": True,
                "showgrid": False,
                "type": "category",
                "autorange": "reversed",
                "nticks": _FULL_ROWS,
            },
            "meta": {"axis": axis},
            # The buttons are above the rows.
            "margin": {"l": 8, "r": 8, "t": 26, "b": 8},
            "hovermode": "closest",
            "uirevision": revision,
        },
    }


def _points(series: Series, window: Window | None) -> tuple[Floats, Floats]:
    """Return place and percentage of the samples in the window."""
    if not series.segments:
        return np.empty(0), np.empty(0)
    x = np.concatenate([segment.x for segment in series.segments])
    y = np.concatenate([segment.y for segment in series.segments])
    low, high = window or (-math.inf, math.inf)
    counts = np.isfinite(x) & np.isfinite(y) & (x >= low) & (x <= high)
    return x[counts], np.clip(y[counts], 0.0, 100.0)


def _cells(places: list[Floats]) -> tuple[float, float, int]:
    """Return where the first cell begins, how wide a cell is, and how many there are.

    The width is a power of two, and a cell begins at a multiple of it: new samples do not move the others.
    """
    low = min(float(x.min()) for x in places if len(x))
    high = max(float(x.max()) for x in places if len(x))
    most = np.unique(max(places, key=len))
    # Narrower than two samples, cells between them would be empty.
    apart = 2 * float(np.median(np.diff(most))) if len(most) > 1 else 1.0
    width = 2.0 ** math.ceil(math.log2(max(apart, (high - low) / (_CELLS - 1), 1.0)))
    first = math.floor(low / width)
    return first * width, width, math.floor(high / width) - first + 1


def _means(x: Floats, y: Floats, first: float, width: float, cells: int) -> Floats:
    """Return the mean of each cell, NaN for an empty one."""
    places = np.clip(((x - first) // width).astype(np.intp), 0, cells - 1)
    counts = np.bincount(places, minlength=cells)
    sums = np.bincount(places, weights=y, minlength=cells)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
