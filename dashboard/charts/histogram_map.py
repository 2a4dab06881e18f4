"""Histograms of one name over the steps as a heat map."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dashboard.charts.packing import packed_grid
from dashboard.charts.palette import color
from toolkit.runs.files.logged_tables import HistogramMap
from toolkit.runs.store import Floats

HEIGHT: Final = 300


def histogram_figure(found: HistogramMap) -> dict[str, Any]:
    """Return the heat map: a column for each step, darker where more of its values are."""
    steps, edges = found.steps, found.edges
    # Colour by the square root, so that the tails can be seen beside the peak.
    share = np.where(found.share > 0, found.share, np.nan)
    return {
        "data": [
            {
                "type": "heatmap",
                "x": _column_edges(steps),
                "y": edges.tolist(),
                "z": packed_grid(np.sqrt(share)),
                "customdata": packed_grid(share * 100),
                "zmin": 0,
                "colorscale": [[0, color("info", 0.08)], [1, color("info")]],
                "showscale": False,
                "hovertemplate": "step %{x:,.0f}, around %{y:.4~g}: %{customdata:.3~g} % of the values<extra></extra>",
            }
        ],
        "layout": {
            "xaxis": {"title": {"text": "step"}, "showgrid": False, "tickangle": 0, "zeroline": False},
            "yaxis": {"fixedrange": True, "showgrid": False, "tickformat": "~g", "zeroline": False},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "hovermode": "closest",
            "uirevision": "histogram",
        },
    }


def _column_edges(steps: Floats) -> list[float]:
    """Return where each column begins and ends: half-way to the next step."""
    if len(steps) == 1:
        return [float(steps[0]) - 0.5, float(steps[0]) + 0.5]
    middle = (steps[1:] + steps[:-1]) / 2
    first, last = steps[0] - (middle[0] - steps[0]), steps[-1] + (steps[-1] - middle[-1])
    return [float(first), *middle.tolist(), float(last)]
