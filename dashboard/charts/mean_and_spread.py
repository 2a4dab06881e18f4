"""Mean and spread of a group of runs as a figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.charts.curves import Figure, frame_around
from dashboard.charts.packing import packed
from dashboard.charts.palette import series_color
from dashboard.data.group import Group
from dashboard.data.run_store import Floats


def group_figure(group: Group, *, log_y: bool = False) -> Figure:
    """Return the mean as a line, one standard deviation and the whole range as bands."""
    data = [
        *_band(group.x, group.low, group.high, "lowest to highest", 0.1),
        *_band(
            group.x, group.mean - group.deviation, group.mean + group.deviation, "one standard deviation", 0.2
        ),
        _line(group.x, group.mean, "mean", 2.0, series_color(0)),
    ]
    yaxis: dict[str, Any] = {"type": "log" if log_y else "linear", "fixedrange": True, "zeroline": False}
    values = np.concatenate([group.low, group.high])
    values = values[np.isfinite(values)]
    if len(values) and not log_y:
        bottom, top = frame_around(float(values.min()), float(values.max()))
        if bottom is not None:
            yaxis["range"] = [bottom, top]
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "step"}, "zeroline": False},
            "yaxis": yaxis,
            "hovermode": "x unified",
            "showlegend": False,
            "margin": {"l": 8, "r": 10, "t": 10, "b": 8},
            "uirevision": "group",
        },
    }


def _band(x: Floats, low: Floats, high: Floats, name: str, opacity: float) -> list[dict[str, Any]]:
    upper = _line(x, high, f"{name}, top", 0, series_color(0, 0.0))
    upper.update(fill="tonexty", fillcolor=series_color(0, opacity))
    return [_line(x, low, f"{name}, bottom", 0, series_color(0, 0.0)), upper]


def _line(x: Floats, y: Floats, name: str, width: float, color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": packed(x),
        "y": packed(y),
        "name": name,
        "line": {"color": color, "width": width},
        "hovertemplate": "%{y:.4~g}",
    }
