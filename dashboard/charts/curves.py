"""Curves as a Plotly figure: raw behind smooth, what was begun again pale, what is no number drawn as such."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dashboard.charts.packing import Window, packed, x_values
from dashboard.charts.palette import color, series_color
from dashboard.data.run_store import Floats, Piece, Series, XAxis
from dashboard.data.formatting import html_text, short_number

Figure = dict[str, Any]

_MAX_MARKS: Final = 60
_MAX_LABELS: Final = 10
_LABEL_SHARE: Final = 0.1
"""Words nearer to each other than this share of the width would stand on each other."""
_NOISE: Final = 1e-9
_ROOM_AROUND: Final = 0.1
_TONES_WORST_FIRST: Final = {"critical": 0, "warning": 1}
_AXIS_TITLES: Final = {"step": "step", "time": "", "elapsed": "time", "epoch": "epoch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric in a chart."""

    series: Series
    around: Series | None = None
    """The whole run in few points, drawn outside the window so that panning finds something."""
    label: str
    number: int = 0
    """Which colour of the palette."""
    dash: str = "solid"
    band: tuple[Series, Series] | None = None
    """Lowest and highest of the steps between two records, drawn as an area."""
    raw: bool = True
    """Whether the curve itself is drawn behind its average."""
    digits: str = ".4~g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at one place of the axis."""

    x: float
    text: str
    tone: str = "muted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of the axis that is meant, shaded from top to bottom or between two values."""

    start: float
    end: float
    tone: str = "warning"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value to measure the curve by: a line across the chart, or between two places of it."""

    y: float
    text: str
    tone: str = "muted"
    between: tuple[float, float] | None = None
    """From where to where it goes; None for all of the width."""
    y_end: float | None = None
    """Where it ends, if that is not the value at which it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a chart is drawn."""

    axis: XAxis = "step"
    window: Window | None = None
    log_y: bool = False
    clip: bool = False
    from_zero: bool = False
    unit: str = ""
    legend: bool = False
    axis_title: bool = True
    mark_labels: bool = True
    limits: tuple[tuple[float, str], ...] = ()
    """Horizontal lines with a word: memory there is, temperature where the card slows down."""
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    """Lines that the frame makes room for."""
    revision: str = ""
    """Zoom and hidden curves are kept as long as this stays the same."""
    marks: tuple[Mark, ...] = field(default_factory=tuple)


def curve_figure(curves: Sequence[Curve], look: Look) -> Figure:
    """Return the figure of `curves`. Never leaves out an extreme that a curve still has, nor a NaN or an infinity."""
    traces: list[dict[str, Any]] = []
    low, high = _y_range(curves, look)
    for curve in curves:
        traces.extend(_band(curve, look))
        traces.extend(_pale(curve, look))
        traces.extend(_lines(curve, look))
        if look.clip and low is not None and high is not None:
            traces.extend(_outside(curve, look, low, high))
    traces.extend(_non_finite(curves, look))
    return {"data": traces, "layout": _layout(look, curves, low, high)}


def chart_label(title: str, series: Series) -> str:
    """Return what a screen reader says about a chart."""
    last = next((float(piece.y[-1]) for piece in reversed(series.pieces) if len(piece.y)), None)
    parts = [title, f"{series.total:,} points"]
    if last is not None:
        parts.append(f"last {short_number(last)}")
    if series.low is not None and series.high is not None:
        parts.append(f"from {short_number(series.low)} to {short_number(series.high)}")
    bad = sum(run.count for run in series.non_finite)
    if bad:
        parts.append(f"{bad:,} not finite")
    return ", ".join(parts)


# ---------------------------------------------------------------- traces


def _joined(pieces: Iterable[Piece], *, apart: bool = False) -> tuple[Floats, Floats]:
    """Return the pieces as one line; `apart` leaves a gap between two sessions, as wall time does."""
    found = list(pieces)
    if not found:
        return np.empty(0), np.empty(0)
    x, y = [found[0].x], [found[0].y]
    for piece in found[1:]:
        if apart:
            x.append(piece.x[:1])
            y.append(np.array([np.nan]))
        x.append(piece.x)
        y.append(piece.y)
    return np.concatenate(x), np.concatenate(y)


def _with_surroundings(inner: Iterable[Piece], outer: Iterable[Piece], look: Look) -> tuple[Floats, Floats]:
    x, y = _joined(inner, apart=look.axis == "time")
    around_x, around_y = _joined(outer, apart=look.axis == "time")
    if look.window is None or not len(around_x):
        return x, y
    if not len(x):
        return around_x, around_y
    before, after = around_x < x[0], around_x > x[-1]
    return (
        np.concatenate((around_x[before], x, around_x[after])),
        np.concatenate((around_y[before], y, around_y[after])),
    )


def _lines(curve: Curve, look: Look) -> list[dict[str, Any]]:
    series, around = curve.series, curve.around
    smooth = bool(series.smooth)
    traces = []
    x, y = _with_surroundings(series.pieces, around.pieces if around else (), look)
    # One point makes no line, and a few are easier to see with dots.
    dots = series.total <= 40
    if curve.raw or not smooth:
        traces.append(
            _trace(
                x,
                y,
                look,
                name=f"{curve.label} (as logged)" if smooth else curve.label,
                color=series_color(curve.number, 0.3 if smooth else 1.0),
                width=1.0 if smooth else 1.6,
                dash="solid" if smooth else curve.dash,
                dots=dots,
                digits=curve.digits,
                legend=not smooth,
            )
        )
    if smooth:
        x, y = _with_surroundings(series.smooth, around.smooth if around else (), look)
        traces.append(
            _trace(
                x,
                y,
                look,
                name=curve.label,
                color=series_color(curve.number),
                width=2.0,
                dash=curve.dash,
                dots=False,
                digits=curve.digits,
                legend=True,
            )
        )
    return traces


def _pale(curve: Curve, look: Look) -> list[dict[str, Any]]:
    return [
        _trace(
            piece.x,
            piece.y,
            look,
            name=f"{curve.label} (session {piece.session}, begun again)",
            color=series_color(curve.number, 0.45),
            width=1.0,
            dash="dot",
            dots=len(piece.x) == 1,
            digits=curve.digits,
            legend=False,
        )
        for piece in curve.series.abandoned
    ]


def _band(curve: Curve, look: Look) -> list[dict[str, Any]]:
    if curve.band is None:
        return []
    traces = []
    for part, series in zip(("lowest", "highest"), curve.band, strict=True):
        x, y = _joined(series.pieces)
        trace = _trace(
            x,
            y,
            look,
            name=f"{part} between records",
            color=series_color(curve.number, 0.0),
            width=0,
            dash="solid",
            dots=False,
            digits=curve.digits,
            legend=False,
        )
        if part == "highest":
            trace["fill"] = "tonexty"
            trace["fillcolor"] = series_color(curve.number, 0.12)
        traces.append(trace)
    return traces


def _trace(
    x: Floats,
    y: Floats,
    look: Look,
    *,
    name: str,
    color: str,
    width: float,
    dash: str,
    dots: bool,
    digits: str,
    legend: bool,
) -> dict[str, Any]:
    shown = np.where(np.isfinite(y), y, np.nan) if len(y) else y
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if dots else "lines",
        "x": packed(x_values(x, look.axis)),
        "y": packed(shown),
        "name": html_text(name),
        "line": {"color": color, "width": width, "dash": dash},
        "hovertemplate": f"%{{y:{digits}}}{html_text(look.unit and ' ' + look.unit)}",
        "showlegend": legend,
    }
    if dots:
        trace["marker"] = {"color": color, "size": 5}
    return trace


def _outside(curve: Curve, look: Look, low: float, high: float) -> list[dict[str, Any]]:
    drawn = [*curve.series.pieces, *curve.series.abandoned]
    lowest, highest = (series.pieces for series in curve.band) if curve.band else ((), ())
    traces = []
    for pieces, above, edge, symbol in (
        ([*drawn, *highest], True, high, "triangle-up"),
        ([*drawn, *lowest], False, low, "triangle-down"),
    ):
        x, y = _joined(pieces)
        mask = y > high if above else y < low
        if not mask.any():
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": packed(x_values(x[mask], look.axis)),
                "y": packed(np.full(int(mask.sum()), edge)),
                "customdata": [short_number(value) for value in y[mask].tolist()],
                "marker": {"symbol": symbol, "size": 8, "color": color("warning")},
                "name": "beyond the frame",
                "hovertemplate": f"{html_text(curve.label)} %{{customdata}}<extra></extra>",
                "showlegend": False,
                "cliponaxis": False,
            }
        )
    return traces


def _non_finite(curves: Sequence[Curve], look: Look) -> list[dict[str, Any]]:
    kinds = {"NaN": ("x", 0.02), "Infinity": ("triangle-up", 0.98), "-Infinity": ("triangle-down", 0.06)}
    traces = []
    for kind, (symbol, height) in kinds.items():
        x, words = [], []
        for curve in curves:
            for run in curve.series.non_finite:
                if run.kind != kind:
                    continue
                what = f"{curve.label}: {kind}" + (f", {run.count:,} in a row" if run.count > 1 else "")
                for place in {run.first_x, run.last_x}:
                    x.append(place)
                    words.append(html_text(what))
        if x:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": packed(x_values(np.asarray(x), look.axis)),
                    "y": [height] * len(x),
                    "yaxis": "y2",
                    "text": words,
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {"symbol": symbol, "size": 8, "color": color("critical")},
                    "name": kind,
                    "showlegend": False,
                    "cliponaxis": False,
                }
            )
    return traces


# ---------------------------------------------------------------- layout


def _y_range(curves: Sequence[Curve], look: Look) -> tuple[float | None, float | None]:
    """Return the frame's lowest and highest value where we choose it; two Nones leave it to the chart."""
    if look.clip:
        edges = [curve.series.percentiles for curve in curves if curve.series.percentiles is not None]
        if not edges:
            return None, None
        low, high = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
        return _with_room(low, high, 0.05)
    if look.window is None:
        return _around_a_constant(curves, look)
    # Zoomed in along the axis, the height fits what is inside the window: spikes, and what was begun again.
    values = [value for curve in curves for value in _heights(curve, look.window)]
    values += [level.y for level in look.levels if values]
    lows, highs = values, values
    if not lows or not highs:
        return None, None
    return _with_room(min(lows), max(highs), 0.06)


def _with_room(low: float, high: float, share: float) -> tuple[float, float]:
    bottom, top = frame_around(low, high)
    room = (high - low) * share
    return (low - room, high + room) if bottom is None or top is None else (bottom, top)


def _around_a_constant(curves: Sequence[Curve], look: Look) -> tuple[float | None, float | None]:
    """Return a frame around what never changes, such as a learning rate; two Nones for what does.

    Left to itself the chart goes 1 above and below, whatever the value: 0.0001 would be drawn as 0.
    """
    if look.log_y:
        # A decade above and below, which is fine.
        return None, None
    values = [value for curve in curves for value in _heights(curve, (-math.inf, math.inf))]
    values += [level.y for level in look.levels] + [limit for limit, _ in look.limits]
    return frame_around(min(values), max(values), from_zero=look.from_zero) if values else (None, None)


def frame_around(
    low: float, high: float, *, from_zero: bool = False
) -> tuple[float, float] | tuple[None, None]:
    """Return where the axis of a constant begins and ends; two Nones where `low` and `high` differ by more than noise.

    The average of equal numbers differs from them in its last digit, and a chart would show nothing but that.
    """
    size = max(abs(low), abs(high))
    room = size * _ROOM_AROUND or 1.0
    if high - low > size * _NOISE or not math.isfinite(size + room):
        return None, None
    if not from_zero:
        return low - room, high + room
    return (low - room, 0.0) if high < 0 else (0.0, high + room)


def _heights(curve: Curve, window: Window) -> list[float]:
    """Return the lowest and highest of everything a curve draws inside the window."""
    pieces = [*curve.series.abandoned, *(piece for series in curve.band or () for piece in series.pieces)]
    found = [height for height in (curve.series.low, curve.series.high) if height is not None]
    for piece in pieces:
        inside = piece.y[(piece.x >= min(window)) & (piece.x <= max(window)) & np.isfinite(piece.y)]
        if len(inside):
            found += [float(inside.min()), float(inside.max())]
    return found


def _ends(curve: Curve) -> list[float]:
    """Return where everything that a curve draws begins and ends along the axis."""
    pieces = [*curve.series.pieces, *curve.series.abandoned]
    ends = [
        float(edge) for piece in pieces for edge in (np.nanmin(piece.x), np.nanmax(piece.x)) if len(piece.x)
    ]
    return ends + [edge for run in curve.series.non_finite for edge in (run.first_x, run.last_x)]


def _layout(look: Look, curves: Sequence[Curve], low: float | None, high: float | None) -> dict[str, Any]:
    xaxis: dict[str, Any] = {
        "type": "date" if look.axis == "time" else "linear",
        "title": {"text": _AXIS_TITLES[look.axis] if look.axis_title else "", "standoff": 4},
        "uirevision": f"{look.revision}|{look.window}",
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": color("muted", 0.5),
        "zeroline": False,
        "hoverformat": ",.0f" if look.axis == "step" else None,
    }
    edges = [edge for curve in curves for edge in _ends(curve) if math.isfinite(edge)]
    if look.window is None and len(set(edges)) > 1:
        # Dots on a curve would make the chart add room at both ends.
        low_x, high_x = x_values(np.asarray([min(edges), max(edges)]), look.axis).tolist()
        xaxis["autorangeoptions"] = {"clipmin": low_x, "clipmax": high_x}
    if look.window is not None:
        xaxis["range"] = x_values(np.asarray(look.window), look.axis).tolist()
    yaxis: dict[str, Any] = {
        "type": "log" if look.log_y else "linear",
        "fixedrange": True,
        "uirevision": f"{look.revision}|{look.window}|{look.log_y}|{look.clip}",
        "zeroline": False,
        "exponentformat": "power" if look.log_y else "SI",
        "dtick": 1 if look.log_y and _decades(curves) > 2 else None,
    }
    if look.from_zero and low is None:
        yaxis["rangemode"] = "tozero"
    if low is not None and high is not None:
        yaxis["range"] = _log_range(curves, low, high) if look.log_y else [low, high]
    shapes, annotations = _marks(look, edges)
    shapes = [*_bands(look), *shapes]
    for level in look.levels:
        shape, annotation = _level(level, look)
        shapes.append(shape)
        annotations.append(annotation)
    for value, text in look.limits:
        shapes.append(
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": value,
                "y1": value,
                "line": {"color": color("warning", 0.7), "width": 1, "dash": "dash"},
            }
        )
        annotations.append(_annotation(text, "warning", xref="paper", x=1, y=value, xanchor="right"))
    return {
        "xaxis": xaxis,
        "yaxis": yaxis,
        "yaxis2": {"overlaying": "y", "range": [0, 1], "fixedrange": True, "visible": False},
        "uirevision": look.revision,
        "hovermode": "x unified" if len(curves) <= 4 else "closest",
        "showlegend": look.legend,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "margin": {"l": 8, "r": 10, "t": 26 if look.legend or annotations else 10, "b": 8},
        "dragmode": "zoom",
        "shapes": shapes,
        "annotations": annotations,
    }


def _decades(curves: Sequence[Curve]) -> float:
    lows = [curve.series.low for curve in curves if curve.series.low is not None and curve.series.low > 0]
    highs = [curve.series.high for curve in curves if curve.series.high is not None and curve.series.high > 0]
    return math.log10(max(highs) / min(lows)) if lows and highs else 0.0


def _log_range(curves: Sequence[Curve], low: float, high: float) -> list[float]:
    positive = [
        float(part.min())
        for curve in curves
        for piece in curve.series.pieces
        if len(part := piece.y[(piece.y > 0) & np.isfinite(piece.y)])
    ]
    floor = max(low, min(positive, default=high or 1.0) * 0.9)
    bottom = math.log10(floor) if floor > 0 else -6.0
    top = math.log10(high) if high > 0 else 0.0
    # Clipped to where hardly anything is positive, the frame would stand on its head.
    return [bottom, top if top > bottom else bottom + 1.0]


def _marks(look: Look, edges: Sequence[float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shapes = []
    marks = look.marks[-_MAX_MARKS:]
    for mark in marks:
        x = float(x_values(np.asarray([mark.x]), look.axis)[0])
        shapes.append(
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": x,
                "x1": x,
                "line": {"color": color(mark.tone, 0.8), "width": 1, "dash": "dot"},
            }
        )
    if not look.mark_labels or len(marks) > _MAX_LABELS:
        return shapes, []
    return shapes, [
        _annotation(
            mark.text,
            mark.tone,
            yref="paper",
            x=float(x_values(np.asarray([mark.x]), look.axis)[0]),
            y=1,
            xanchor="left",
        )
        for mark in _without_overlap(marks, look.window or (min(edges, default=0.0), max(edges, default=0.0)))
    ]


def _without_overlap(marks: Sequence[Mark], window: Window) -> list[Mark]:
    """Return marks with words that have room: those of neighbours stand one behind the other, at the first of them."""
    room = _LABEL_SHARE * abs(window[1] - window[0])
    found: list[Mark] = []
    for mark in sorted((mark for mark in marks if mark.text), key=lambda mark: mark.x):
        if found and mark.x - found[-1].x < room:
            worst = min((found[-1], mark), key=lambda one: _TONES_WORST_FIRST.get(one.tone, 9))
            words = dict.fromkeys([*found[-1].text.split(", "), mark.text])
            found[-1] = replace(found[-1], text=", ".join(words), tone=worst.tone)
        else:
            found.append(mark)
    return found


def _bands(look: Look) -> list[dict[str, Any]]:
    shapes = []
    for band in look.bands:
        start, end = x_values(np.asarray([band.start, band.end]), look.axis).tolist()
        inside = band.low is not None and band.high is not None
        shapes.append(
            {
                "type": "rect",
                "layer": "below",
                "x0": start,
                "x1": end,
                "yref": "y" if inside else "paper",
                "y0": band.low if inside else 0,
                "y1": band.high if inside else 1,
                "fillcolor": color(band.tone, 0.12),
                "line": {"width": 0},
            }
        )
    return shapes


def _level(level: Level, look: Look) -> tuple[dict[str, Any], dict[str, Any]]:
    across = level.between is None
    places = [0.0, 1.0] if across else x_values(np.asarray(level.between), look.axis).tolist()
    end = level.y if level.y_end is None else level.y_end
    shape = {
        "type": "line",
        "xref": "paper" if across else "x",
        "x0": places[0],
        "x1": places[1],
        "y0": level.y,
        "y1": end,
        "line": {"color": color(level.tone, 0.9), "width": 1.5, "dash": "dash"},
    }
    # Plotly takes the logarithm of a line's height itself, and leaves that of a word to us.
    height = math.log10(end) if look.log_y and end > 0 else end
    if across:
        return shape, _annotation(level.text, level.tone, xref="paper", x=1, xanchor="right", y=height)
    # Under the middle of a line that climbs there is room.
    middle = (level.y + end) / 2
    height = math.log10(middle) if look.log_y and middle > 0 else middle
    word = _annotation(level.text, level.tone, x=sum(places) / 2, xanchor="left", y=height)
    return shape, {**word, "yanchor": "top"}


def _annotation(text: str, tone: str, **place: Any) -> dict[str, Any]:
    return {
        "text": html_text(text, 40),
        "showarrow": False,
        "yanchor": "bottom",
        "font": {"size": 11, "color": color(tone)},
        **place,
    }
