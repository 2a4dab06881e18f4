"""What a chart of curves consists of, and its axes, marks and reference lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dashboard.charts.packing import Window, x_values
from dashboard.charts.palette import color
from toolkit.runs.formatting import html_text, short_number
from toolkit.runs.store import CurveSegment, Floats, Series, XAxis

Figure = dict[str, Any]

_MAX_MARKS: Final = 60
_MAX_LABELS: Final = 10
_LABEL_DISTANCE: Final = 0.1
"""Labels closer than this fraction of the width would overlap."""
_NOISE: Final = 1e-9
_MAX_STRETCHES: Final = 40
_CORE: Final = (2, 96)
"""Percentiles between which a curve is worth the height of a chart."""
_MUCH: Final = 2.0
_END: Final = 0.05
FEW_POINTS: Final = 40
_LABEL_WIDTH: Final = 0.011
"""Of a character of a label, as a fraction of the width of a chart."""
_ROOM_AROUND: Final = 0.2
_TONES_WORST_FIRST: Final = {"critical": 0, "warning": 1}
_AXIS_TITLES: Final = {"step": "step", "time": "", "elapsed": "time", "epoch": "epoch"}


DIGITS: Final = ".4~g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric in a chart."""

    series: Series
    around: Series | None = None
    """The whole run in a few points, drawn outside the window so that panning shows something."""
    label: str
    number: int = 0
    """Index into the palette."""
    colour: str | None = None
    """The colour of its run, instead of one by `number`."""
    run: str | None = None
    """The key of its run, if the chart shows several: the curve is highlighted with it."""
    dash: str = "solid"
    band: tuple[Series, Series] | None = None
    """Minimum and maximum of the steps between two records, drawn as an area."""
    raw: bool = True
    """Whether the raw curve is drawn behind the smoothed one."""
    digits: str = DIGITS
    """The number format of values that are not logged ones; a logged value has six digits unless this is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMark:
    """A vertical line with a label."""

    x: float
    text: str
    tone: str = "muted"
    metric: str | None = None
    """The metric that it concerns; None for every chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A shaded range of the x axis, from top to bottom or between two values."""

    start: float
    end: float
    tone: str = "warning"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A reference value: a line across the chart, or between two x positions."""

    y: float
    text: str
    tone: str = "muted"
    between: tuple[float, float] | None = None
    """Its x range; None for the full width."""
    y_end: float | None = None
    """The value at its end, if it is not horizontal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartStyle:
    """How a chart is drawn."""

    axis: XAxis = "step"
    window: Window | None = None
    log_y: bool = False
    clip: bool = False
    fit: bool = False
    """Whether the y range may leave out a few extreme values; they are marked at the edge."""
    from_zero: bool = False
    unit: str = ""
    legend: bool = False
    times: bool = False
    """Whether the tooltip also has the wall time of each point."""
    axis_title: bool = True
    mark_labels: bool = True
    limits: tuple[tuple[float, str], ...] = ()
    """Horizontal lines with a label, such as total memory or the power limit."""
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    """Reference lines, which the y range includes."""
    overlay: Curve | None = None
    """A further curve, on a y axis of its own on the right."""
    revision: str = ""
    """Zoom and hidden curves are kept while this stays the same."""
    marks: tuple[ChartMark, ...] = field(default_factory=tuple)


def _stretches(
    curves: Sequence[Curve], style: ChartStyle, edges: Sequence[float]
) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield band and label of the longest stretches without a number."""
    found = [(curve, stretch) for curve in curves for stretch in curve.series.stretches]
    found = sorted(found, key=lambda one: -one[1].count)[:_MAX_STRETCHES]
    start, end = style.window or (min(edges, default=0.0), max(edges, default=0.0))
    labelled_from = math.inf
    for curve, stretch in sorted(found, key=lambda one: -one[1].first_x):
        first, last = x_values(np.asarray([stretch.first_x, stretch.last_x]), style.axis).tolist()
        shape = {
            **_column(first, last, "critical"),
            "line": {"width": 1, "color": color("critical", 0.5)},
        }
        text = ", ".join(f"{count:,} {kind}" for kind, count in stretch.kinds.items())
        if len(curves) > 1:
            text = f"{curve.label}: {text}"
        on_the_right = stretch.first_x > (start + end) / 2
        if labelled_from - stretch.first_x < _LABEL_DISTANCE * abs(end - start):
            text = ""
        else:
            labelled_from = stretch.first_x
        yield (
            shape,
            _annotation(
                text,
                "critical",
                yref="paper",
                y=1,
                yanchor="top",
                x=last if on_the_right else first,
                xanchor="right" if on_the_right else "left",
            ),
        )


def joined(segments: Iterable[CurveSegment], *, apart: bool = False) -> tuple[Floats, Floats]:
    """Return the segments as one line; `apart` leaves a gap between them."""
    found = list(segments)
    if not found:
        return np.empty(0), np.empty(0)
    x, y = [found[0].x], [found[0].y]
    for segment in found[1:]:
        if apart:
            x.append(segment.x[:1])
            y.append(np.array([np.nan]))
        x.append(segment.x)
        y.append(segment.y)
    return np.concatenate(x), np.concatenate(y)


def y_range(curves: Sequence[Curve], style: ChartStyle) -> tuple[float | None, float | None]:
    """Return the y range if we choose it; two Nones leave it to Plotly."""
    if style.clip:
        edges = [curve.series.percentiles for curve in curves if curve.series.percentiles is not None]
        if not edges:
            return None, None
        low, high = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
        return _with_room(low, high, 0.05)
    if style.window is None:
        fitted = _fitted_range(curves, style)
        return constant_range(curves, style) if fitted is None else fitted
    # Zoomed in, the y range fits what is inside the window, including spikes and superseded points.
    values = [value for curve in curves for value in heights(curve, style.window)]
    values += [level.y for level in style.levels if values]
    lows, highs = values, values
    if not lows or not highs:
        return None, None
    return _with_room(min(lows), max(highs), 0.06)


def is_fitted(curves: Sequence[Curve], style: ChartStyle) -> bool:
    """Return whether the y range leaves out a few extreme values."""
    return style.window is None and not style.clip and _fitted_range(curves, style) is not None


def _fitted_range(curves: Sequence[Curve], style: ChartStyle) -> tuple[float, float] | None:
    """Return a y range for most of the curve if a few extreme values would fill the chart; None otherwise."""
    if not style.fit or style.log_y or style.levels or style.limits:
        return None
    everything = [value for curve in curves for value in heights(curve, (-math.inf, math.inf))]
    core = [value for curve in curves for value in _core(curve.series)]
    if not core:
        return None
    low, high = min(core), max(core)
    if style.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    size = high - low
    if not size > 0 or not math.isfinite(size) or max(everything) - min(everything) <= _MUCH * size:
        return None
    # An extreme that is not far away stays inside.
    bottom = min(everything) if low - min(everything) <= size else low
    top = max(everything) if max(everything) - high <= size else high
    room = 0.08 * (top - bottom)
    return (0.0 if style.from_zero and bottom >= 0 else bottom - room), top + room


def _core(series: Series) -> list[float]:
    """Return the ends of the y range that most of a curve is in, and its end always."""
    found: list[float] = []
    for segments in (series.segments, series.smooth):
        x, y = joined(segments)
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if not len(y):
            continue
        # Of a few points each one matters.
        found += np.percentile(y, _CORE if series.total > FEW_POINTS else (0, 100)).tolist()
        if segments is series.smooth or not series.smooth:
            end = y[x >= x.max() - _END * (x.max() - x.min())]
            found += [float(end.min()), float(end.max())]
    return found


def _left_out(curves: Sequence[Curve], style: ChartStyle, low: float | None, high: float | None) -> str:
    """Return, in words, what lies outside a fitted y range."""
    if low is None or high is None or not is_fitted(curves, style):
        return ""
    values = [value for curve in curves for value in heights(curve, (-math.inf, math.inf))]
    parts = []
    if max(values) > high:
        parts.append(f"▲ up to {short_number(max(values))}")
    if min(values) < low:
        parts.append(f"▼ down to {short_number(min(values))}")
    hint = " · double-click shows all" if parts and style.axis_title else ""
    return " · ".join(parts) + hint


def _with_room(low: float, high: float, margin: float) -> tuple[float, float]:
    bottom, top = frame_around(low, high)
    room = (high - low) * margin
    return (low - room, high + room) if bottom is None or top is None else (bottom, top)


def constant_range(curves: Sequence[Curve], style: ChartStyle) -> tuple[float | None, float | None]:
    """Return a y range around a constant, such as a learning rate; two Nones for anything else.

    Plotly's default is 1 above and below, whatever the value: 0.0001 would look like 0.
    """
    if style.log_y:
        # Plotly shows a decade above and below, which is fine.
        return None, None
    values = [value for curve in curves for value in heights(curve, (-math.inf, math.inf))]
    values += [level.y for level in style.levels] + [limit for limit, _ in style.limits]
    return frame_around(min(values), max(values), from_zero=style.from_zero) if values else (None, None)


def frame_around(
    low: float, high: float, *, from_zero: bool = False
) -> tuple[float, float] | tuple[None, None]:
    """Return the axis range of a constant; two Nones if `low` and `high` differ by more than rounding.

    The average of equal numbers can differ in its last digit, and a chart would show only that.
    """
    size = max(abs(low), abs(high))
    room = size * _ROOM_AROUND or 1.0
    if high - low > size * _NOISE or not math.isfinite(size + room):
        return None, None
    if not from_zero:
        return low - room, high + room
    return (low - room, 0.0) if high < 0 else (0.0, high + room)


def heights(curve: Curve, window: Window) -> list[float]:
    """Return the extremes of everything a curve draws inside the window."""
    segments = [
        *curve.series.superseded,
        *(segment for series in curve.band or () for segment in series.segments),
    ]
    found = [height for height in (curve.series.low, curve.series.high) if height is not None]
    for segment in segments:
        inside = segment.y[(segment.x >= min(window)) & (segment.x <= max(window)) & np.isfinite(segment.y)]
        if len(inside):
            found += [float(inside.min()), float(inside.max())]
    return found


def _ends(curve: Curve) -> list[float]:
    """Return the x positions at which a curve's segments start and end."""
    segments = [*curve.series.segments, *curve.series.superseded]
    ends = [
        float(edge)
        for segment in segments
        for edge in (np.nanmin(segment.x), np.nanmax(segment.x))
        if len(segment.x)
    ]
    return ends + [edge for run in curve.series.non_finite for edge in (run.first_x, run.last_x)]


def chart_layout(
    style: ChartStyle, curves: Sequence[Curve], low: float | None, high: float | None
) -> dict[str, Any]:
    """Return axes, marks, bands and reference lines; `low` and `high` are the y range if we choose it."""
    xaxis: dict[str, Any] = {
        "type": "date" if style.axis == "time" else "linear",
        "title": {"text": _AXIS_TITLES[style.axis] if style.axis_title else "", "standoff": 4},
        "uirevision": f"{style.revision}|{style.window}",
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": color("muted", 0.5),
        "zeroline": False,
        "hoverformat": ",.0f" if style.axis == "step" else None,
    }
    edges = [edge for curve in curves for edge in _ends(curve) if math.isfinite(edge)]
    if style.window is None and len(set(edges)) > 1:
        # With dots on a curve, Plotly would add room at both ends.
        low_x, high_x = x_values(np.asarray([min(edges), max(edges)]), style.axis).tolist()
        xaxis["autorangeoptions"] = {"clipmin": low_x, "clipmax": high_x}
    if style.window is not None:
        xaxis["range"] = x_values(np.asarray(style.window), style.axis).tolist()
    yaxis: dict[str, Any] = {
        "type": "log" if style.log_y else "linear",
        "uirevision": f"{style.revision}|{style.window}|{style.log_y}|{style.clip}",
        "zeroline": False,
        "exponentformat": "power"
        if style.log_y
        else exponent_format([value for curve in curves for value in heights(curve, (-math.inf, math.inf))]),
        "dtick": 1 if style.log_y and _decades(curves) > 2 else None,
    }
    if style.from_zero and low is None:
        yaxis["rangemode"] = "tozero"
    if low is not None and high is not None:
        yaxis["range"] = _log_range(curves, low, high) if style.log_y else [low, high]
    shapes, annotations = _marks(style, edges)
    shapes = [*_bands(style), *shapes]
    for shape, annotation in _stretches(curves, style, edges):
        shapes.append(shape)
        annotations.append(annotation)
    for level in style.levels:
        shape, annotation = _level(level, style)
        shapes.append(shape)
        annotations.append(annotation)
    outside = _left_out(curves, style, low, high)
    if outside:
        place = {"x": 1, "xanchor": "right"}
        if any(curve.series.stretches for curve in curves):
            # Their labels are on the right.
            place = {"x": 0.01, "xanchor": "left"}
        annotations.append(
            _annotation(outside, "muted", xref="paper", yref="paper", y=0.99, yanchor="top", **place)
        )
    for value, text in style.limits:
        shapes.append(
            _line((0, 1), (value, value), color("warning", 0.7), width=1, dash="dash", xref="paper")
        )
        annotations.append(_annotation(text, "warning", xref="paper", x=1, y=value, xanchor="right"))
    return {
        "xaxis": xaxis,
        "yaxis": yaxis,
        "yaxis2": {"overlaying": "y", "range": [0, 1], "fixedrange": True, "visible": False},
        "uirevision": style.revision,
        "meta": {"axis": style.axis},
        "hovermode": "x unified" if len(curves) <= 4 else "closest",
        "showlegend": style.legend,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "margin": {"l": 8, "r": 10, "t": 26 if style.legend or annotations else 10, "b": 8},
        "dragmode": "zoom",
        "shapes": shapes,
        "annotations": annotations,
    }


def exponent_format(values: Iterable[float]) -> str:
    """Return how an axis writes its ticks: 20k, but 8e-5 and never 80µ, which is no way to write a learning rate."""
    return "SI" if max((abs(value) for value in values), default=0.0) >= 1.0 else "e"


def _decades(curves: Sequence[Curve]) -> float:
    lows = [curve.series.low for curve in curves if curve.series.low is not None and curve.series.low > 0]
    highs = [curve.series.high for curve in curves if curve.series.high is not None and curve.series.high > 0]
    return math.log10(max(highs) / min(lows)) if lows and highs else 0.0


def _log_range(curves: Sequence[Curve], low: float, high: float) -> list[float]:
    positive = [
        float(part.min())
        for curve in curves
        for segment in curve.series.segments
        if len(part := segment.y[(segment.y > 0) & np.isfinite(segment.y)])
    ]
    floor = max(low, min(positive, default=high or 1.0) * 0.9)
    bottom = math.log10(floor) if floor > 0 else -6.0
    top = math.log10(high) if high > 0 else 0.0
    # If hardly anything is positive, the range would be inverted.
    return [bottom, top if top > bottom else bottom + 1.0]


def _marks(style: ChartStyle, edges: Sequence[float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shapes = []
    marks = style.marks[-_MAX_MARKS:]
    for mark in marks:
        x = float(x_values(np.asarray([mark.x]), style.axis)[0])
        shapes.append(_line((x, x), (0, 1), color(mark.tone, 0.8), width=1, dash="dot", yref="paper"))
    if not style.mark_labels or len(marks) > _MAX_LABELS:
        return shapes, []
    return shapes, _mark_labels(
        marks, style, style.window or (min(edges, default=0.0), max(edges, default=0.0))
    )


def _mark_labels(marks: Sequence[ChartMark], style: ChartStyle, window: Window) -> list[dict[str, Any]]:
    """Return labels that neither overlap nor leave the chart; the worst mark of a group names it."""
    width = abs(window[1] - window[0]) or 1.0
    placed: list[tuple[float, float, list[ChartMark]]] = []
    for mark in sorted(marks, key=lambda mark: (_TONES_WORST_FIRST.get(mark.tone, 9), mark.x)):
        if not mark.text:
            continue
        at = (mark.x - min(window)) / width
        # Four characters for what may be added.
        reach = _LABEL_WIDTH * (min(len(mark.text), 40) + 4)
        start, end = (at - reach, at) if at > 0.5 else (at, at + reach)
        near = next((group for low, high, group in placed if start < high and low < end), None)
        if near is None:
            placed.append((start, end, [mark]))
        elif mark.text not in [other.text for other in near]:
            near.append(mark)
    labels = []
    for _, _, group in sorted(placed, key=lambda one: one[0]):
        first = group[0]
        on_the_right = (first.x - min(window)) / width > 0.5
        label = _annotation(
            first.text + (f" +{len(group) - 1}" if len(group) > 1 else ""),
            first.tone,
            yref="paper",
            x=float(x_values(np.asarray([first.x]), style.axis)[0]),
            y=1,
            xanchor="right" if on_the_right else "left",
        )
        if len(group) > 1:
            label["hovertext"] = "<br>".join(html_text(mark.text, 80) for mark in group)
        labels.append(label)
    return labels


def _bands(style: ChartStyle) -> list[dict[str, Any]]:
    shapes = []
    for band in style.bands:
        start, end = x_values(np.asarray([band.start, band.end]), style.axis).tolist()
        inside = band.low is not None and band.high is not None
        shape = _column(start, end, band.tone)
        shapes.append({**shape, "yref": "y", "y0": band.low, "y1": band.high} if inside else shape)
    return shapes


def _level(level: Level, style: ChartStyle) -> tuple[dict[str, Any], dict[str, Any]]:
    across = level.between is None
    places = [0.0, 1.0] if across else x_values(np.asarray(level.between), style.axis).tolist()
    end = level.y if level.y_end is None else level.y_end
    shape = _line(
        (places[0], places[1]),
        (level.y, end),
        color(level.tone, 0.9),
        width=1.5,
        dash="dash",
        xref="paper" if across else "x",
    )
    # Plotly converts a line's y to log scale itself, but not an annotation's.
    height = math.log10(end) if style.log_y and end > 0 else end
    if across:
        return shape, _annotation(level.text, level.tone, xref="paper", x=1, xanchor="right", y=height)
    # There is room under the middle of a rising line.
    middle = (level.y + end) / 2
    height = math.log10(middle) if style.log_y and middle > 0 else middle
    word = _annotation(level.text, level.tone, x=sum(places) / 2, xanchor="left", y=height)
    return shape, {**word, "yanchor": "top"}


def _line(
    x: tuple[float, float], y: tuple[float, float], line_color: str, *, width: float, dash: str, **ref: str
) -> dict[str, Any]:
    line = {"color": line_color, "width": width, "dash": dash}
    return {"type": "line", "x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1], "line": line, **ref}


def _column(start: float, end: float, tone: str) -> dict[str, Any]:
    """Return a shaded range of the x axis, from top to bottom."""
    place = {"x0": start, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": "rect", "layer": "below", **place, "fillcolor": color(tone, 0.12), "line": {"width": 0}}


def _annotation(text: str, tone: str, **place: Any) -> dict[str, Any]:
    return {
        "text": html_text(text, 40),
        "showarrow": False,
        "yanchor": "bottom",
        "font": {"size": 11, "color": color(tone)},
        **place,
    }
