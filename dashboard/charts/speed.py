"""How long a step takes in each job, one row a job: a point for the median, whiskers for the spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dashboard.charts.curves import Figure, frame_around
from dashboard.charts.palette import series_color
from dashboard.data.speed import Group, Job, step_time
from dashboard.data.formatting import html_text

_ROW_PX: Final = 42
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def speed_figure(groups: Sequence[Group]) -> Figure:
    """Return the rows of `groups` from top to bottom; each group has a colour and a symbol of its own."""
    jobs = [(number, group, job) for number, group in enumerate(groups) for job in group.jobs]
    row_of = {(job.run, job.session): -row for row, (_, _, job) in enumerate(jobs)}
    xaxis: dict[str, Any] = {"title": {"text": "seconds a step"}, "zeroline": False, "fixedrange": True}
    times = [edge for _, _, job in jobs for edge in (job.p10, job.p90)]
    left, right = frame_around(min(times), max(times)) if times else (None, None)
    if left is not None:
        xaxis["range"] = [left, right]
    return {
        "data": [_trace(number, group, row_of) for number, group in enumerate(groups)],
        "layout": {
            "xaxis": xaxis,
            # The labels stand above their rows: beside them they would leave a phone no room for the chart.
            "yaxis": {
                "showticklabels": False,
                "showgrid": False,
                "zeroline": False,
                "fixedrange": True,
                "range": [0.4 - len(jobs), 0.85],
            },
            "annotations": [_label(group, job, -row) for row, (_, group, job) in enumerate(jobs)],
            "showlegend": False,
            "hovermode": "closest",
            "margin": {"l": 8, "r": 14, "t": 4, "b": 8},
            "uirevision": "speed",
        },
    }


def speed_height(groups: Sequence[Group]) -> int:
    """Return how high the figure has to be, in pixels, for every row to be legible."""
    return 56 + _ROW_PX * sum(len(group.jobs) for group in groups)


def _trace(number: int, group: Group, row_of: dict[tuple[str, int], int]) -> dict[str, Any]:
    jobs = group.jobs
    return {
        "type": "scatter",
        "mode": "markers",
        "name": html_text(group.name, 40),
        "x": [job.median for job in jobs],
        "y": [row_of[job.run, job.session] for job in jobs],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [job.p90 - job.median for job in jobs],
            "arrayminus": [job.median - job.p10 for job in jobs],
            "color": series_color(number, 0.7),
            "thickness": 2,
            "width": 5,
        },
        "marker": {
            "color": series_color(number),
            "symbol": [_symbol(number, job) for job in jobs],
            "size": 10,
        },
        "text": [_hover(job) for job in jobs],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _symbol(number: int, job: Job) -> str:
    symbol = _SYMBOLS[number % len(_SYMBOLS)]
    # An empty one was too short to be judged.
    return symbol if job.noise is not None else f"{symbol}-open"


def _hover(job: Job) -> str:
    return (
        f"{html_text(job.label, 60)}<br>median {step_time(job.median)} a step"
        f"<br>10 to 90 %: {step_time(job.p10)} to {step_time(job.p90)}"
    )


def _label(group: Group, job: Job, row: int) -> dict[str, Any]:
    return {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": row,
        "yshift": 10,
        "yanchor": "bottom",
        "text": f"<b>{html_text(group.name, 24)}</b>  {html_text(job.label, 40)}"
        if group.tagged
        else f"<b>{html_text(job.label, 40)}</b>",
        "showarrow": False,
        "font": {"size": 11},
    }
