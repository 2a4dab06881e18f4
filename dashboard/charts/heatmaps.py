"""Heat maps: the utilization of many GPUs, one metric of all ranks, and histograms over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from toolkit.telemetry.runs.files.logged_tables import HistogramMap
from toolkit.telemetry.runs.rank_grid import RankGrid
from toolkit.telemetry.runs.store import Floats, Series

from .packing import FRAME, x_values
from .palette import color

SAMPLES: Final = 2000
"""Buckets to ask of each series: up to this many samples every one counts in the mean of its cell."""
_CELLS: Final = 96
_ROW_PX: Final = 22
_FULL_ROWS: Final = 24
"""With more rows than that they become lower, not the chart higher."""
_X_AXIS: Final = {"showgrid": False, "zeroline": False}
_SCREEN: Final = "<f4"
"""A screen resolves no more, and plotly sends an array as its bytes."""


def gpu_heatmap_figure(utilization: Mapping[int, Series], *, revision: str) -> go.Figure | None:
    """Return the heat map of the utilization by GPU over time, a row each; None without a sample."""
    points = {gpu: _points(series) for gpu, series in utilization.items()}
    if not any(len(x) for x, _ in points.values()):
        return None
    first, width, cells = _cells([x for x, _ in points.values()])
    mean = np.stack(
        [
            pd.Series(y).groupby(((x - first) // width).astype(np.intp)).mean().reindex(range(cells))
            for x, y in points.values()
        ]
    )
    middles = first + (np.arange(cells, dtype=np.float64) + 0.5) * width
    xaxis = {
        **_X_AXIS,
        "type": "date",
        "uirevision": revision,
    }
    heat = go.Heatmap(
        name="GPU utilization",
        x=x_values(middles),
        y=[str(gpu) for gpu in points],
        z=mean.astype(_SCREEN),
        zmin=0,
        zmax=100,
        ygap=1,
        colorscale=[[0, color("info", 0.1)], [1, color("info")]],
        hovertemplate="GPU %{y}, %{x|%b %-d, %H:%M:%S}: mean %{z:.3~g} %<extra></extra>",
        colorbar={"thickness": 8, "title": {"text": "%"}},
    )
    figure = _figure(heat, xaxis, _rows_axis("GPU"), revision)
    # The buttons are above the rows.
    height = 78 + _ROW_PX * min(len(points), _FULL_ROWS)
    return figure.update_layout(margin_t=26, height=height)


def _points(series: Series) -> tuple[Floats, Floats]:
    """Return place and percentage of the samples."""
    if not series.segments:
        return np.empty(0), np.empty(0)
    x = np.concatenate([segment.x for segment in series.segments])
    y = np.concatenate([segment.y for segment in series.segments])
    counts = np.isfinite(x) & np.isfinite(y)
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


# ---------------------------------------------------------------- ranks

MAX_ROWS: Final = 256
"""More ranks are folded: a row of less than two pixels cannot be seen."""


def ranks_per_row(grid: RankGrid) -> int:
    """Return how many ranks share a row."""
    return max(1, -(-len(grid.ranks) // MAX_ROWS))


def rank_heatmap_figure(grid: RankGrid, marks: Mapping[int, str] | None = None) -> go.Figure:
    """Return the heat map. A cell shows its mean; a row of several ranks shows, in each cell, the slowest of them.

    `marks` are a symbol and a word for ranks with a problem, shown next to their rows.
    """
    marks = marks or {}
    per_row = ranks_per_row(grid)
    ranks = np.array(grid.ranks)
    begins = np.arange(0, len(ranks), per_row)
    if per_row > 1:
        # NaN counts as less than any value, and a cell without one stays empty.
        filled = np.where(np.isnan(grid.mean), -np.inf, grid.mean)
        best = np.stack([start + filled[start : start + per_row].argmax(axis=0) for start in begins.tolist()])
    else:
        best = np.repeat(begins[:, None], grid.mean.shape[1], axis=1)
    cells = np.arange(grid.mean.shape[1])
    mean, high = grid.mean[best, cells], grid.high[best, cells]
    ends = np.minimum(begins + per_row, len(ranks)) - 1
    names = [
        _row_name(first, last, marks)
        for first, last in zip(ranks[begins].tolist(), ranks[ends].tolist(), strict=True)
    ]
    heat = go.Heatmap(
        x=grid.first_step + (cells + 0.5) * grid.cell_steps,
        y=names,
        z=mean.astype(_SCREEN),
        customdata=np.stack((ranks[best], high), axis=-1).astype(_SCREEN),
        colorscale=[[0, color("info", 0.1)], [1, color("critical")]],
        hovertemplate=(
            "rank %{customdata[0]}, step %{x:,.0f}: mean %{z:.3~g} s, "
            "longest %{customdata[1]:.3~g} s<extra></extra>"
        ),
        colorbar={"thickness": 8, "title": {"text": "s"}},
    )
    figure = _figure(heat, {**_X_AXIS, "title": {"text": "step"}}, _rows_axis("rank"), "ranks")
    height = 60 + _ROW_PX * min(len(grid.ranks), _FULL_ROWS)
    return figure.update_layout(height=height)


def _row_name(first: int, last: int, marks: Mapping[int, str]) -> str:
    if first == last:
        return f"{first} {marks[first]}" if first in marks else str(first)
    marked = [f"{rank} {mark}" for rank, mark in marks.items() if first <= rank <= last]
    return f"{first} to {last}" + "".join(f", {each}" for each in marked[:2])


# ---------------------------------------------------------------- histograms


def histogram_figure(found: HistogramMap) -> go.Figure:
    """Return the heat map: a column for each step, darker where more of its values are."""
    steps, edges = found.steps, found.edges
    # Colour by the square root, so that the tails can be seen next to the peak.
    share = np.where(found.share > 0, found.share, np.nan)
    heat = go.Heatmap(
        x=_column_edges(steps),
        y=edges,
        z=np.sqrt(share).astype(_SCREEN),
        customdata=(share * 100).astype(_SCREEN),
        zmin=0,
        colorscale=[[0, color("info", 0.08)], [1, color("info")]],
        showscale=False,
        hovertemplate="step %{x:,.0f}, around %{y:.4~g}: %{customdata:.3~g} % of the values<extra></extra>",
    )
    xaxis = {**_X_AXIS, "title": {"text": "step"}, "tickangle": 0}
    yaxis = {"fixedrange": True, "showgrid": False, "tickformat": "~g", "zeroline": False}
    return _figure(heat, xaxis, yaxis, "histogram").update_layout(height=300)


def _column_edges(steps: Floats) -> Floats:
    """Return where each column begins and ends: half-way to the next step."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middle = (steps[1:] + steps[:-1]) / 2
    return np.concatenate(([2 * steps[0] - middle[0]], middle, [2 * steps[-1] - middle[-1]]))


def _figure(heat: go.Heatmap, xaxis: dict[str, Any], yaxis: dict[str, Any], revision: str) -> go.Figure:
    return go.Figure(heat, {**FRAME, "xaxis": xaxis, "yaxis": yaxis, "uirevision": revision})


def _rows_axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8},
        "fixedrange": True,
        "showgrid": False,
        "type": "category",
        "autorange": "reversed",
        "nticks": _FULL_ROWS,
    }
