"""Spans and events as bars along the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.charts.curves import Figure
from dashboard.charts.packing import x_values
from dashboard.charts.palette import series_color
from dashboard.data.words import duration, html_text


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took a while, or happened at one moment (0 seconds)."""

    row: str
    start: float
    seconds: float
    text: str


def bars_figure(bars: Sequence[Bar], revision: str) -> Figure:
    """Return one row a name, bars where it happened; moments are drawn as diamonds."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    traces: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        of_row = [bar for bar in bars if bar.row == row]
        long = [bar for bar in of_row if bar.seconds > 0]
        short = [bar for bar in of_row if bar.seconds <= 0]
        if long:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "y": [html_text(row)] * len(long),
                    "base": x_values(np.array([bar.start for bar in long]), "time").tolist(),
                    "x": [bar.seconds * 1000 for bar in long],
                    "text": [html_text(bar.text) for bar in long],
                    "customdata": [duration(bar.seconds) for bar in long],
                    "textposition": "none",
                    "hovertemplate": "%{text}<br>%{customdata}<extra></extra>",
                    "marker": {"color": series_color(number)},
                    "showlegend": False,
                }
            )
        if short:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "y": [html_text(row)] * len(short),
                    "x": x_values(np.array([bar.start for bar in short]), "time").tolist(),
                    "text": [html_text(bar.text) for bar in short],
                    "hovertemplate": "%{text}<br>%{x|%H:%M:%S}<extra></extra>",
                    "marker": {"symbol": "diamond", "size": 9, "color": series_color(number)},
                    "showlegend": False,
                }
            )
    return {
        "data": traces,
        "layout": {
            "xaxis": {"type": "date", "uirevision": revision},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [html_text(row) for row in reversed(rows)],
                "fixedrange": True,
            },
            "barmode": "overlay",
            "bargap": 0.35,
            "hovermode": "closest",
            "margin": {"l": 8, "r": 10, "t": 10, "b": 8},
            "uirevision": revision,
        },
    }
