"""Mean and spread of a metric over a group of runs, as columns and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dashboard.charts.curve_layout import Figure, exponent_format, frame_around
from dashboard.charts.packing import packed
from dashboard.charts.palette import DASHES, SERIES, series_color
from toolkit.runs.columns.smoothing import FINEST
from toolkit.runs.formatting import html_text
from toolkit.runs.store import Floats, Series, Smoothing

_POINTS: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurve:
    """A metric over several runs, at common x positions."""

    x: Floats
    mean: Floats
    deviation: Floats


def group_smoothing(smoothing: Smoothing) -> Smoothing:
    """Return the smoothing to read the runs of a group with.

    What is drawn of a long run are extremes, whose mean would jump: the least is the mean of one pixel or two.
    """
    return FINEST if smoothing == 0 else smoothing


def mean_and_spread(series: Sequence[Series]) -> GroupCurve:
    """Return mean and spread over `series`, read with `group_smoothing`; each counts from its first to its last x.

    Values between two points are interpolated. NaN and infinity are left out. A run that is not smoothed counts with
    its logged values.
    """
    curves = [_curve(one) for one in series]
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        empty = np.empty(0)
        return GroupCurve(x=empty, mean=empty, deviation=empty)
    first, last = min(float(x[0]) for x, _ in curves), max(float(x[-1]) for x, _ in curves)
    positions = np.unique(np.linspace(first, last, _POINTS))
    rows = np.full((len(curves), len(positions)), np.nan)
    for number, (x, y) in enumerate(curves):
        inside = (positions >= x[0]) & (positions <= x[-1])
        rows[number, inside] = np.interp(positions[inside], x, y)
    some = np.isfinite(rows).any(axis=0)
    rows, positions = rows[:, some], positions[some]
    return GroupCurve(x=positions, mean=np.nanmean(rows, axis=0), deviation=np.nanstd(rows, axis=0))


def against_group(groups: Sequence[tuple[str, GroupCurve]], base: GroupCurve) -> list[tuple[str, GroupCurve]]:
    """Return each group minus the mean of `base` at the same x, where `base` has one; the spread stays its own."""
    found = []
    for label, group in groups:
        inside = (group.x >= base.x[0]) & (group.x <= base.x[-1])
        level = np.interp(group.x[inside], base.x, base.mean)
        curve = GroupCurve(
            x=group.x[inside], mean=group.mean[inside] - level, deviation=group.deviation[inside]
        )
        found.append((label, curve))
    return found


def _curve(series: Series) -> tuple[Floats, Floats]:
    segments = series.smooth or series.segments
    if not segments:
        return np.empty(0), np.empty(0)
    x = np.concatenate([segment.x for segment in segments])
    y = np.concatenate([segment.y for segment in segments])
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


# ---------------------------------------------------------------- figure


def groups_figure(groups: Sequence[tuple[str, GroupCurve]], *, log_y: bool = False) -> Figure:
    """Return several groups: the mean of each as a line, one standard deviation as a band."""
    data: list[dict[str, Any]] = []
    edges: list[Floats] = []
    for number, (label, group) in enumerate(groups):
        low, high = group.mean - group.deviation, group.mean + group.deviation
        edges += [low, high]
        # The band of a single run has no height.
        if (group.deviation > 0).any():
            data += _band(group.x, low, high, number, html_text(label))
        line = _line(group.x, group.mean, html_text(label, 60), 2.0, series_color(number))
        dash = DASHES[number // SERIES % len(DASHES)]
        tip = {"label": html_text(label, 80), "color": series_color(number), "unit": "", "kind": "mean"}
        data.append(
            {
                **line,
                "line": {**line["line"], "dash": dash},
                "showlegend": True,
                "customdata": packed(group.deviation),
                "meta": {"run": html_text(label), "tip": tip},
            }
        )
    values = np.concatenate(edges)
    values = values[np.isfinite(values)]
    yaxis: dict[str, Any] = {
        "type": "log" if log_y else "linear",
        "fixedrange": True,
        "zeroline": False,
        "exponentformat": exponent_format(values),
    }
    if len(values) and not log_y:
        bottom, top = frame_around(float(values.min()), float(values.max()))
        if bottom is not None:
            yaxis["range"] = [bottom, top]
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "step"}, "zeroline": False},
            "yaxis": yaxis,
            "meta": {"axis": "step"},
            "hovermode": "x unified",
            "showlegend": True,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
            "margin": {"l": 8, "r": 10, "t": 26, "b": 8},
            "uirevision": "group",
        },
    }


def _band(x: Floats, low: Floats, high: Floats, number: int, label: str) -> list[dict[str, Any]]:
    """Return the band of a group, which is not in the hover box."""
    unseen = series_color(number, 0.0)
    lower, upper = (_line(x, edge, "one standard deviation", 0, unseen) for edge in (low, high))
    upper.update(fill="tonexty", fillcolor=series_color(number, 0.15))
    hidden = {"showlegend": False, "hoverinfo": "skip", "hovertemplate": None, "meta": {"run": label}}
    return [{**lower, **hidden}, {**upper, **hidden}]


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
