"""Metric curves as a Plotly figure: raw, smoothed, superseded sessions, NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from dashboard.charts.curve_layout import (
    DIGITS,
    FEW_POINTS,
    ChartStyle,
    Curve,
    Figure,
    chart_layout,
    constant_range,
    exponent_format,
    heights,
    is_fitted,
    joined,
    y_range,
)
from dashboard.charts.packing import packed, packed_times, x_values
from dashboard.charts.palette import color, series_color, shade
from toolkit.runs.formatting import html_text, short_number
from toolkit.runs.store import CurveSegment, Floats, Series

_RAW_OPACITY: Final = 0.2
"""Of the logged curve behind its smoothed one."""
_MAX_LABEL: Final = 80
_MAX_KEY: Final = 400
_MAX_STARTS: Final = 50
"""A clock that was corrected more often does not say how long a run has taken."""
_EXACT_DIGITS: Final = ".6~g"


def curve_figure(curves: Sequence[Curve], style: ChartStyle) -> Figure:
    """Return the figure of `curves`. Never hides an extreme, a NaN or an infinity."""
    traces: list[dict[str, Any]] = []
    low, high = y_range(curves, style)
    for curve in curves:
        traces.extend(_band(curve, style))
        traces.extend(_superseded(curve, style))
        traces.extend(_lines(curve, style))
        if (style.clip or is_fitted(curves, style)) and low is not None and high is not None:
            traces.extend(_outside(curve, style, low, high))
    layout = chart_layout(style, curves, low, high)
    if style.overlay is not None:
        traces.extend({**trace, "yaxis": "y3"} for trace in _lines(style.overlay, style))
        layout["yaxis3"] = {
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "zeroline": False,
            "exponentformat": exponent_format(heights(style.overlay, (-math.inf, math.inf))),
        }
        bottom, top = constant_range([style.overlay], ChartStyle())
        if bottom is not None:
            layout["yaxis3"]["range"] = [bottom, top]
    traces.extend(_non_finite(curves, style))
    return {"data": traces, "layout": layout}


def chart_label(title: str, series: Series) -> str:
    """Return the description of a chart for screen readers."""
    last = next((float(segment.y[-1]) for segment in reversed(series.segments) if len(segment.y)), None)
    parts = [title, f"{series.total:,} points"]
    if last is not None:
        parts.append(f"last {short_number(last)}")
    if series.low is not None and series.high is not None:
        parts.append(f"from {short_number(series.low)} to {short_number(series.high)}")
    bad = sum(run.count for run in series.non_finite)
    if bad:
        parts.append(f"{bad:,} NaN or infinite")
    return ", ".join(parts)


def _color_of(curve: Curve, opacity: float) -> str:
    return series_color(curve.number, opacity) if curve.colour is None else shade(curve.colour, opacity)


# ---------------------------------------------------------------- traces


def _with_context(
    inner: Iterable[CurveSegment], outer: Iterable[CurveSegment], style: ChartStyle, *, apart: bool
) -> tuple[Floats, Floats]:
    x, y = joined(inner, apart=apart)
    around_x, around_y = joined(outer, apart=apart)
    if style.window is None or not len(around_x):
        return x, y
    if not len(x):
        return around_x, around_y
    before, after = around_x < x[0], around_x > x[-1]
    return (
        np.concatenate((around_x[before], x, around_x[after])),
        np.concatenate((around_y[before], y, around_y[after])),
    )


def _lines(curve: Curve, style: ChartStyle) -> list[dict[str, Any]]:
    series, around = curve.series, curve.around
    smooth = bool(series.smooth)
    traces = []
    # Wall time passes between two sessions, steps do not.
    apart = style.axis == "time"
    x, y = _with_context(series.segments, around.segments if around else (), style, apart=apart)
    if curve.raw or not smooth:
        raw = _trace(
            x,
            y,
            curve,
            style,
            name=f"{curve.label} (as logged)" if smooth else curve.label,
            opacity=_RAW_OPACITY if smooth else 1.0,
            width=1.0 if smooth else 1.6,
            dash="solid" if smooth else curve.dash,
            # A single point makes no line, and a few are easier to see with dots.
            dots=series.total <= FEW_POINTS,
            legend=not smooth,
        )
        if smooth:
            _, smoothed = _with_context(
                _smoothed(series.segments), _smoothed(around.segments if around else ()), style, apart=apart
            )
            unit = html_text(style.unit and " " + style.unit)
            raw["customdata"] = packed(smoothed)
            raw["hovertemplate"] = (
                f"logged %{{y:{_logged_digits(curve)}}}{unit} · smoothed %{{customdata:{curve.digits}}}{unit}"
                f"<extra>{html_text(curve.label)}</extra>"
            )
            raw["legendgroup"] = html_text(curve.label)
        raw["meta"]["tip"] = _tip(curve, style, curve.label)
        if style.times and style.axis != "time":
            raw["meta"]["tip"].update(_times(series, around, style))
        traces.append(raw)
    if smooth:
        x, y = _with_context(series.smooth, around.smooth if around else (), style, apart=True)
        line = _trace(x, y, curve, style, name=curve.label, width=2.0, dash=curve.dash, legend=True)
        if curve.raw:
            # The raw curve says both values, and only where one was logged.
            line["hoverinfo"] = "skip"
            del line["hovertemplate"]
            line["legendgroup"] = html_text(curve.label)
        else:
            line["hovertemplate"] = f"smoothed {line['hovertemplate']}"
            line["meta"]["tip"] = {**_tip(curve, style, curve.label), "kind": "smoothed"}
        traces.append(line)
    return traces


def _tip(curve: Curve, style: ChartStyle, label: str, kind: str = "logged") -> dict[str, Any]:
    """Return how a trace is listed in the tooltip."""
    return {
        "label": html_text(label, _MAX_LABEL),
        "color": _color_of(curve, 1.0),
        "unit": html_text(style.unit),
        "kind": kind,
    }


def _times(series: Series, around: Series | None, style: ChartStyle) -> dict[str, Any]:
    """Return the wall time of each point of a raw trace, and how to get from it to the time since the start."""
    inner, outer = series.segments, around.segments if around else ()
    if any(segment.time is None or segment.elapsed is None for segment in (*inner, *outer)):
        return {}
    _, times = _with_context(_with_y(inner, "time"), _with_y(outer, "time"), style, apart=False)
    _, elapsed = _with_context(_with_y(inner, "elapsed"), _with_y(outer, "elapsed"), style, apart=False)
    when = packed_times(times)
    if when is None:
        return {}
    if np.isfinite(elapsed).all():
        before = times - elapsed
        changes = [0, *(np.flatnonzero(np.abs(np.diff(before)) > 1.0) + 1).tolist()]
        if len(changes) <= _MAX_STARTS:
            starts = np.floor(x_values(before[changes], "time") / 1000.0)
            when["starts"] = [list(pair) for pair in zip(changes, starts.tolist(), strict=True)]
    return {"when": when}


def _with_y(segments: Iterable[CurveSegment], name: Literal["time", "elapsed"]) -> list[CurveSegment]:
    return [replace(segment, y=getattr(segment, name)) for segment in segments]


def _logged_digits(curve: Curve) -> str:
    """Return the number format of a logged value: with as many digits as are exact."""
    return _EXACT_DIGITS if curve.digits == DIGITS else curve.digits


def _smoothed(segments: Iterable[CurveSegment]) -> list[CurveSegment]:
    return [
        replace(segment, y=np.full(len(segment.x), np.nan) if segment.smoothed is None else segment.smoothed)
        for segment in segments
    ]


def _superseded(curve: Curve, style: ChartStyle) -> list[dict[str, Any]]:
    traces = []
    for segment in curve.series.superseded:
        name = f"{curve.label} (session {segment.session}, superseded)"
        trace = _trace(
            segment.x,
            segment.y,
            curve,
            style,
            name=name,
            opacity=0.45,
            width=1.0,
            dash="dot",
            dots=len(segment.x) == 1,
        )
        trace["meta"]["tip"] = _tip(curve, style, name)
        traces.append(trace)
    return traces


def _band(curve: Curve, style: ChartStyle) -> list[dict[str, Any]]:
    if curve.band is None:
        return []
    traces = []
    for part, series in zip(("min", "max"), curve.band, strict=True):
        x, y = joined(series.segments)
        trace = _trace(x, y, curve, style, name=f"{part} between records", opacity=0.0, width=0)
        if part == "max":
            trace["fill"] = "tonexty"
            trace["fillcolor"] = _color_of(curve, 0.12)
        trace["meta"]["tip"] = _tip(curve, style, f"{part} between records", "band")
        traces.append(trace)
    return traces


def _trace(
    x: Floats,
    y: Floats,
    curve: Curve,
    style: ChartStyle,
    *,
    name: str,
    width: float,
    opacity: float = 1.0,
    dash: str = "solid",
    dots: bool = False,
    legend: bool = False,
) -> dict[str, Any]:
    color = _color_of(curve, opacity)
    shown = np.where(np.isfinite(y), y, np.nan) if len(y) else y
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if dots else "lines",
        "x": packed(x_values(x, style.axis)),
        "y": packed(shown),
        "name": html_text(name),
        "line": {"color": color, "width": width, "dash": dash},
        "hovertemplate": f"%{{y:{_logged_digits(curve)}}}{html_text(style.unit and ' ' + style.unit)}",
        "showlegend": legend,
        "meta": {"run": html_text(curve.run or curve.label, _MAX_KEY)},
    }
    if dots:
        trace["marker"] = {"color": color, "size": 5}
    return trace


def _outside(curve: Curve, style: ChartStyle, low: float, high: float) -> list[dict[str, Any]]:
    drawn = [*curve.series.segments, *curve.series.superseded]
    lowest, highest = (series.segments for series in curve.band) if curve.band else ((), ())
    traces = []
    for segments, above, edge, symbol in (
        ([*drawn, *highest], True, high, "triangle-up"),
        ([*drawn, *lowest], False, low, "triangle-down"),
    ):
        x, y = joined(segments)
        mask = y > high if above else y < low
        if not mask.any():
            continue
        marks = _markers(x[mask], style, symbol, "warning", "outside the range")
        marks["y"] = packed(np.full(int(mask.sum()), edge))
        marks["customdata"] = [short_number(value) for value in y[mask].tolist()]
        marks["hovertemplate"] = f"{html_text(curve.label)} %{{customdata}}<extra></extra>"
        traces.append(marks)
    return traces


def _non_finite(curves: Sequence[Curve], style: ChartStyle) -> list[dict[str, Any]]:
    kinds = {"NaN": ("x", 0.02), "Infinity": ("triangle-up", 0.98), "-Infinity": ("triangle-down", 0.06)}
    traces = []
    for kind, (symbol, height) in kinds.items():
        x, texts = [], []
        for curve in curves:
            for run in curve.series.non_finite:
                if run.kind != kind:
                    continue
                what = f"{curve.label}: {kind}" + (f", {run.count:,} in a row" if run.count > 1 else "")
                for place in {run.first_x, run.last_x}:
                    x.append(place)
                    texts.append(html_text(what))
        if x:
            marks = _markers(np.asarray(x), style, symbol, "critical", kind)
            marks |= {"y": [height] * len(x), "yaxis": "y2", "text": texts}
            traces.append({**marks, "hovertemplate": "%{text}<extra></extra>"})
    return traces


def _markers(x: Floats, style: ChartStyle, symbol: str, tone: str, name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": packed(x_values(x, style.axis)),
        "marker": {"symbol": symbol, "size": 8, "color": color(tone)},
        "name": name,
        "showlegend": False,
        "cliponaxis": False,
    }
