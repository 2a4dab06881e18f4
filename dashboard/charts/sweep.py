"""The runs of a sweep as figures: a scatter plot, parallel coordinates, and what each setting explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dashboard.charts.curve_layout import Figure, frame_around
from dashboard.charts.palette import SERIES, color, series_color
from toolkit.runs.formatting import html_text, short_number
from toolkit.runs.settings import as_number, setting_text
from toolkit.runs.sweep.answer import Direction, Factor, is_log_scale

_MAX_CATEGORIES: Final = SERIES
_LABEL_LENGTH: Final = 26
_SCALE: Final = ((0.0, color("series-1")), (1.0, color("series-0")))
"""From the best or lowest value to the worst or highest."""
_MAX_TICKS: Final = 8
_MANY: Final = 500
"""From here on, points are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run in a scatter plot."""

    name: str
    x: Any
    y: float
    shade: Any = None
    """Its value of the setting that colours the points."""
    best: bool = False
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The name of an axis, and whether it is logarithmic; None to decide by the values."""

    title: str
    log: bool | None = None


def scatter_figure(points: Sequence[Point], x: Axis, y: Axis, shade: str | None, *, revision: str) -> Figure:
    """Return the runs as points; a filled one is finished, a ring is not, and the best run has a star."""
    numeric = all(as_number(point.x) is not None for point in points)
    groups = _shades(points) if shade is not None else [("", list(range(len(points))), None)]
    scaled = shade is not None and all(as_number(point.shade) is not None for point in points)
    traces = [
        _points(points, rows, label, number, numeric=numeric, scaled=scaled, shade=shade)
        for number, (label, rows, _) in enumerate(groups)
    ]
    xs = [float(as_number(point.x) or 0.0) for point in points] if numeric else []
    return {
        "data": traces,
        "layout": {
            "xaxis": _axis(x, xs, numeric=numeric, revision=revision),
            "yaxis": _axis(y, [point.y for point in points], numeric=True, revision=revision),
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "hovermode": "closest",
            "dragmode": "zoom",
            "showlegend": shade is not None and not scaled,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            "uirevision": revision,
        },
    }


def parallel_figure(
    rows: Sequence[Sequence[Any]], names: Sequence[str], metric: str, direction: Direction
) -> Figure:
    """Return one line for each run through its settings, the metric last; drag along an axis to filter.

    The last of each row is the metric. Every value must be there.
    """
    columns = list(zip(*rows, strict=True))
    costs = [float(value) for value in columns[-1]]
    low, high = min(costs), max(costs)
    return {
        "data": [
            {
                "type": "parcoords",
                "line": {
                    "color": costs if direction == "min" else [-cost for cost in costs],
                    "colorscale": [list(stop) for stop in _SCALE],
                    "cmin": low if direction == "min" else -high,
                    "cmax": high if direction == "min" else -low,
                },
                "dimensions": [
                    _dimension(name, values) for name, values in zip((*names, metric), columns, strict=True)
                ],
                "labelangle": -22,
                "labelside": "top",
                "unselected": {"line": {"color": color("muted"), "opacity": 0.12}},
            }
        ],
        "layout": {"margin": {"l": 44, "r": 44, "t": 78, "b": 18}},
    }


def importance_figure(factors: Sequence[Factor]) -> Figure:
    """Return a bar for each setting, with its interval; those beyond chance are coloured."""
    shown = list(reversed(factors))
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": [html_text(short_key(factor.name, 34)) for factor in shown],
                "x": [100 * factor.share for factor in shown],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * (factor.high - factor.share) for factor in shown],
                    "arrayminus": [100 * (factor.share - factor.low) for factor in shown],
                    "thickness": 1.5,
                    "width": 4,
                    "color": color("muted"),
                },
                "marker": {
                    "color": [color("series-0") if factor.named else color("muted", 0.45) for factor in shown]
                },
                "customdata": [
                    f"{html_text(factor.name)}<br>{100 * factor.share:.0f} %, "
                    f"90 % interval {100 * factor.low:.0f} to {100 * factor.high:.0f} %<br>"
                    f"n = {factor.runs}, p = {factor.p:.2g} (adjusted)"
                    for factor in shown
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
                "showlegend": False,
            }
        ],
        "layout": {
            "xaxis": {"range": [0, 100], "ticksuffix": " %", "fixedrange": True, "tickangle": 0},
            "yaxis": {"fixedrange": True, "ticksuffix": "  "},
            "margin": {"l": 8, "r": 8, "t": 4, "b": 8},
            "bargap": 0.45,
            "dragmode": False,
        },
    }


def short_key(key: str, length: int = _LABEL_LENGTH) -> str:
    """Return the end of a long name, which is what tells settings apart."""
    return key if len(key) <= length else f"…{key[-(length - 1) :]}"


# ---------------------------------------------------------------- inside


def _points(
    points: Sequence[Point],
    rows: Sequence[int],
    label: str,
    number: int,
    *,
    numeric: bool,
    scaled: bool,
    shade: str | None,
) -> dict[str, Any]:
    chosen = [points[row] for row in rows]
    marker: dict[str, Any] = {
        "size": [16 if point.best else 9 if len(points) <= _MANY else 5 for point in chosen],
        "symbol": [
            "star" if point.best else "circle-open" if point.unfinished else "circle" for point in chosen
        ],
        "color": [
            color("series-1") if point.best and shade is None else series_color(number, 0.85)
            for point in chosen
        ],
        "line": {"width": 1.5 if any(point.unfinished for point in chosen) else 0},
    }
    if scaled:
        marker.update(
            color=[_scaled(point.shade, points) for point in chosen],
            colorscale=[list(stop) for stop in reversed(_flipped())],
            showscale=True,
            colorbar=_colorbar(points, str(shade)),
        )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": html_text(label),
        "x": [as_number(point.x) if numeric else html_text(setting_text(point.x), 40) for point in chosen],
        "y": [point.y for point in chosen],
        "customdata": [[row] for row in rows],
        "text": [_hover(point, shade) for point in chosen],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": marker,
    }


def _hover(point: Point, shade: str | None) -> str:
    lines = [
        f"<b>{html_text(point.name, 60)}</b>" + (" (unfinished)" if point.unfinished else ""),
        f"{short_number(point.y)} at {html_text(setting_text(point.x), 60)}",
    ]
    if shade is not None:
        lines.append(f"{html_text(short_key(shade))} {html_text(setting_text(point.shade), 60)}")
    return "<br>".join(lines)


def _flipped() -> list[tuple[float, str]]:
    return [(1.0 - place, shade) for place, shade in _SCALE]


def _shades(points: Sequence[Point]) -> list[tuple[str, list[int], None]]:
    """Return the groups of points by colour: one for numbers, else one for each of the most common values."""
    if all(as_number(point.shade) is not None for point in points):
        return [("", list(range(len(points))), None)]
    by_value: dict[str, list[int]] = {}
    for row, point in enumerate(points):
        by_value.setdefault(setting_text(point.shade), []).append(row)
    ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = ordered[: _MAX_CATEGORIES - 1] if len(ordered) > _MAX_CATEGORIES else ordered
    rest = [row for _, rows in ordered[len(shown) :] for row in rows]
    groups = [(label, rows, None) for label, rows in shown]
    return [*groups, ("other values", rest, None)] if rest else groups


def _scaled(value: Any, points: Sequence[Point]) -> float:
    number = float(as_number(value) or 0.0)
    return math.log10(number) if _is_log_shade(points) else number


def _is_log_shade(points: Sequence[Point]) -> bool:
    return is_log_scale([float(as_number(point.shade) or 0.0) for point in points])


def _colorbar(points: Sequence[Point], title: str) -> dict[str, Any]:
    bar: dict[str, Any] = {
        "title": {"text": html_text(short_key(title)), "side": "right"},
        "thickness": 10,
        "outlinewidth": 0,
    }
    if _is_log_shade(points):
        numbers = [float(as_number(point.shade) or 1.0) for point in points]
        bar.update(_log_ticks(min(numbers), max(numbers)))
    return bar


def _axis(axis: Axis, values: Sequence[float], *, numeric: bool, revision: str) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "title": {"text": html_text(axis.title, 60)},
        "uirevision": revision,
        "automargin": True,
    }
    if not numeric:
        return {**layout, "type": "category"}
    positive = bool(values) and min(values) > 0
    if positive and (is_log_scale(values) if axis.log is None else axis.log):
        return {
            **layout,
            "type": "log",
            "exponentformat": "power",
            "dtick": 1 if _decades(values) > 1 else "D2",
        }
    layout.update(type="linear", exponentformat="e")
    bottom, top = frame_around(min(values), max(values)) if values else (None, None)
    return layout if bottom is None else {**layout, "range": [bottom, top]}


def _decades(values: Sequence[float]) -> float:
    return math.log10(max(values) / min(values))


def _dimension(name: str, values: Sequence[Any]) -> dict[str, Any]:
    label = html_text(short_key(name, 18))
    numbers = [as_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if len(known) < len(values) or len(set(known)) <= _MAX_TICKS:
        return {"label": label, **_even(values, known if len(known) == len(values) else None)}
    if is_log_scale(known):
        return {
            "label": label,
            "values": [math.log10(number) for number in known],
            **_log_ticks(min(known), max(known)),
        }
    return {"label": label, "values": known, **_linear_ticks(min(known), max(known))}


def _even(values: Sequence[Any], numbers: Sequence[float] | None) -> dict[str, Any]:
    """Return values at equal distances: numbers in their order, texts by name."""
    order = sorted(set(numbers)) if numbers is not None else sorted({setting_text(value) for value in values})
    places: dict[Any, int] = {value: place for place, value in enumerate(order)}
    every = max(1, -(-len(order) // _MAX_TICKS))
    of_runs = numbers if numbers is not None else [setting_text(value) for value in values]
    whole = numbers is not None and all(number == int(number) for number in numbers)
    texts = [setting_text(int(value) if whole else value) for value in order]
    return {
        "values": [places[value] for value in of_runs],
        "tickvals": list(range(0, len(order), every)),
        "ticktext": [html_text(short_key(text, 14)) for text in texts[::every]],
        "range": [-0.15, max(len(order) - 0.85, 0.15)],
    }


def _linear_ticks(low: float, high: float) -> dict[str, Any]:
    if not low < high:
        return {"tickvals": [low], "ticktext": [short_number(low)]}
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    ticks = [place * step for place in range(first, math.floor(high / step) + 1)]
    return {"tickvals": ticks, "ticktext": [short_number(tick) for tick in ticks]}


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, -(-len(decades) // _MAX_TICKS))
    shown = list(decades)[::every]
    return {"tickvals": shown, "ticktext": [setting_text(10.0**power) for power in shown]}
