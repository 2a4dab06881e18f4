"""Step times of several ranks as a heat map: which rank is slow, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboard.charts.palette import color
from dashboard.data.run_store import Series

_CELLS = 80


def rank_heatmap_figure(rows: Sequence[tuple[int, Series]]) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """Return the heat map and the five slowest ranks with their median step time. A cell shows its slowest step."""
    low = min(float(segment.x.min()) for _, series in rows for segment in series.segments)
    high = max(float(segment.x.max()) for _, series in rows for segment in series.segments)
    edges = np.linspace(low, high if high > low else low + 1.0, _CELLS + 1)
    grid = np.full((len(rows), _CELLS), np.nan)
    medians = []
    for number, (rank, series) in enumerate(rows):
        x = np.concatenate([segment.x for segment in series.segments])
        y = np.concatenate([segment.y for segment in series.segments])
        known = np.isfinite(y)
        cells = np.clip(np.searchsorted(edges, x[known], side="right") - 1, 0, _CELLS - 1)
        for cell, value in zip(cells.tolist(), y[known].tolist(), strict=True):
            grid[number, cell] = np.nanmax((grid[number, cell], value))
        medians.append((rank, float(np.median(y[known])) if known.any() else 0.0))
    slowest = sorted(medians, key=lambda item: item[1], reverse=True)[:5]
    figure = {
        "data": [
            {
                "type": "heatmap",
                "x": ((edges[:-1] + edges[1:]) / 2).tolist(),
                "y": [f"rank {rank}" for rank, _ in rows],
                "z": [[None if not np.isfinite(value) else value for value in row] for row in grid.tolist()],
                "colorscale": [[0, color("info", 0.1)], [1, color("critical")]],
                "hovertemplate": "%{y}, step %{x:,.0f}: %{z:.3~g} s<extra></extra>",
                "colorbar": {"thickness": 8, "title": {"text": "s"}},
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "step"}},
            "yaxis": {"fixedrange": True, "type": "category"},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "uirevision": "ranks",
        },
    }
    return figure, slowest
