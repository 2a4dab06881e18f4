"""Step time by job: one row per job, a point for the median, whiskers for the spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dashboard.charts.curve_layout import Figure, frame_around
from dashboard.charts.palette import series_color
from toolkit.runs.columns.speed import JobGroup, JobSpeed, step_time
from toolkit.runs.formatting import html_text

_ROW_PX: Final = 42
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def speed_figure(groups: Sequence[JobGroup]) -> Figure:
    """Return the figure; each group has its own colour and symbol."""
    jobs = [(number, group, job) for number, group in enumerate(groups) for job in group.jobs]
    row_of = {(job.run, job.session): -row for row, (_, _, job) in enumerate(jobs)}
    xaxis: dict[str, Any] = {"title": {"text": "seconds per step"}, "zeroline": False, "fixedrange": True}
    times = [edge for _, _, job in jobs for edge in (job.p10, job.p90)]
    left, right = frame_around(min(times), max(times)) if times else (None, None)
    if left is not None:
        xaxis["range"] = [left, right]
    return {
        "data": [_trace(number, group, row_of) for number, group in enumerate(groups)],
        "layout": {
            "xaxis": xaxis,
            # Labels are above their rows: beside them there would be no room for the chart on a phone.
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


def speed_height(groups: Sequence[JobGroup]) -> int:
    """Return the height in pixels at which every row is legible."""
    return 56 + _ROW_PX * sum(len(group.jobs) for group in groups)


def _trace(number: int, group: JobGroup, row_of: dict[tuple[str, int], int]) -> dict[str, Any]:
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


def _symbol(number: int, job: JobSpeed) -> str:
    symbol = _SYMBOLS[number % len(_SYMBOLS)]
    # An empty symbol marks a job too short to compare.
    return symbol if job.noise is not None else f"{symbol}-open"


def _hover(job: JobSpeed) -> str:
    return (
        f"{html_text(job.label, 60)}<br>median {step_time(job.median)} per step"
        f"<br>p10 to p90: {step_time(job.p10)} to {step_time(job.p90)}"
    )


def _label(group: JobGroup, job: JobSpeed, row: int) -> dict[str, Any]:
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
