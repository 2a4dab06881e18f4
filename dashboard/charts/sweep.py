"""The runs of a sweep: as points, as parallel coordinates, and what each setting explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from toolkit.telemetry.runs import statistics as stats
from toolkit.telemetry.runs.formatting import html_text
from toolkit.telemetry.runs.settings import as_number, setting_text
from toolkit.telemetry.runs.sweep.answer import Factor, is_log_scale
from toolkit.telemetry.runs.sweep.runs import Direction

from .packing import FRAME
from .palette import SERIES, color, series_color

_SCALE: Final = ((0.0, color("series-1")), (1.0, color("series-0")))
"""From the best to the worst."""
_MAX_TICKS: Final = 8
_MAX_LEVELS: Final = 30
_BY_SIZE: Final = ((0.0, color("series-0")), (0.5, color("series-2")), (1.0, color("series-1")))
"""By way of green: what is between blue and orange itself is grey."""
_FEWEST_FITS: Final = 100
_FIT_POINTS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run; `shade` is the setting by which points are coloured."""

    x: Any
    y: float
    shade: Any
    is_best: bool
    is_open: bool
    text: Sequence[str]
    address: str
    """What a click opens."""


def scatter_figure(
    points: Sequence[Point], x: str, y: str, shade: str | None, *, log_y: bool, fits: bool = False
) -> go.Figure:
    """Return a point for each run: the best a star, and those that are open rings.

    With `fits` the runs that are done have a parabola through them, with its 90 % band.
    """
    numbers = [number for point in points if (number := as_number(point.x)) is not None]
    is_number = len(numbers) == len(points)
    labels = [] if is_number else sorted({setting_text(point.x) for point in points})[:_MAX_LEVELS]
    marks = _ordered([point.shade for point in points]) if shade is not None else []
    by_size = bool(marks) and all(as_number(point.shade) is not None for point in points)
    figure = go.Figure()
    done = [point for point in points if not point.is_open]
    if fits and is_number:
        _add_fit(figure, [as_number(point.x) or 0.0 for point in done], [point.y for point in done])
    names = [short_key(mark, 24) for mark in marks]
    for place, name in enumerate([""] if by_size or not marks else [*names[:SERIES], "others"]):
        # The best run is drawn last, above the others.
        of_trace = sorted(
            (
                point
                for point in points
                if not name or min(marks.index(setting_text(point.shade)), SERIES) == place
            ),
            key=lambda point: point.is_best,
        )
        if not of_trace:
            continue
        figure.add_scatter(
            mode="markers",
            x=[
                as_number(point.x) if is_number else html_text(setting_text(point.x), 18)
                for point in of_trace
            ],
            y=[point.y for point in of_trace],
            text=["<br>".join(map(html_text, point.text)) for point in of_trace],
            customdata=[[point.address] for point in of_trace],
            hovertemplate="%{text}<extra></extra>",
            name=html_text(name),
            showlegend=bool(name),
            marker={
                "size": [17 if point.is_best else 9 for point in of_trace],
                "symbol": [
                    "star" if point.is_best else "circle-open" if point.is_open else "circle"
                    for point in of_trace
                ],
                "opacity": 0.85,
                "color": [
                    marks.index(setting_text(point.shade))
                    if by_size
                    else color("muted")
                    if place >= SERIES
                    else series_color(1 if point.is_best and not name else place)
                    for point in of_trace
                ],
            },
        )
    if by_size:
        shown = sorted({0, len(marks) // 2, len(marks) - 1})
        figure.update_traces(
            selector={"mode": "markers"},
            marker={
                "colorscale": _BY_SIZE,
                "cmin": 0,
                "cmax": max(len(marks) - 1, 1),
                "colorbar": {
                    "title": {"text": html_text(short_key(shade or "", 18))},
                    "thickness": 8,
                    "tickvals": shown,
                    "ticktext": [html_text(names[at]) for at in shown],
                },
            },
        )
    return figure.update_layout(
        xaxis={
            "title": {"text": html_text(x)},
            "type": ("log" if is_log_scale(numbers) else "linear") if is_number else "category",
            "exponentformat": "power",
            "categoryarray": [html_text(label, 18) for label in labels] or None,
            "zeroline": False,
        },
        yaxis={"title": {"text": html_text(y)}, "type": "log" if log_y else "linear", "zeroline": False},
        legend={
            "title": {"text": html_text(shade or "")},
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
        },
        **FRAME,
        height=340,
    )


def _add_fit(figure: go.Figure, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw a parabola through points, and where 90 % of those through random choices of them are."""
    is_log = is_log_scale(x)
    at, values = np.log(x) if is_log else np.array(x), np.array(y)
    parabolas = stats.parabolas(at, values)
    if len(parabolas) < _FEWEST_FITS:
        return
    places = np.linspace(at.min(), at.max(), _FIT_POINTS)
    found = [np.polyval(one, places) for one in parabolas]
    low, high = np.quantile(found[1:], (0.05, 0.95), axis=0)
    shown = np.exp(places) if is_log else places
    look = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    figure.add_scatter(
        x=np.concatenate((shown, shown[::-1])),
        y=np.concatenate((high, low[::-1])),
        fill="toself",
        fillcolor=color("info", 0.12),
        line={"width": 0},
        **look,
    )
    figure.add_scatter(x=shown, y=found[0], line={"color": color("muted"), "dash": "dash"}, **look)


def _ordered(values: Sequence[Any]) -> list[str]:
    """Return the different values as texts: numbers by their size, others by how often they occur."""
    texts = {setting_text(value): value for value in values}
    if all(as_number(value) is not None for value in values):
        return sorted(texts, key=lambda text: float(as_number(texts[text]) or 0.0))
    return sorted(texts, key=lambda text: (-sum(setting_text(value) == text for value in values), text))


def importance_figure(factors: Sequence[Factor]) -> go.Figure:
    """Return a bar for each setting: the share of the differences that it explains, and its 90 % interval."""
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        x=[factor.share for factor in factors],
        y=[f"{html_text(short_key(factor.name, 24))}  {factor.share:.0%}" for factor in factors],
        error_x={
            "array": [factor.high - factor.share for factor in factors],
            "arrayminus": [factor.share - factor.low for factor in factors],
            "color": color("muted"),
        },
        marker_color=[color("series-0") if factor.named else color("muted") for factor in factors],
        text=[
            html_text(
                f"{factor.name}: {factor.share:.0%}, 90 % interval {factor.low:.0%} to {factor.high:.0%}; "
                f"{factor.runs} runs, p = {factor.p:.2g} (adjusted)"
            )
            for factor in factors
        ],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )
    return figure.update_layout(
        xaxis={"range": [0, 1], "tickformat": ".0%", "fixedrange": True},
        yaxis={"autorange": "reversed", "fixedrange": True},
        bargap=0.5,
        **FRAME,
        height=50 + 30 * len(factors),
    )


def parallel_figure(
    rows: Sequence[Sequence[Any]], names: Sequence[str], metric: str, direction: Direction
) -> go.Figure:
    """Return one line for each run through its settings, the metric last; drag along an axis to filter.

    The last of each row is the metric. Every value must be there. A line has the colour of its place among all: by
    their values, a single diverged run would give all others one colour.
    """
    columns = list(zip(*rows, strict=True))
    sign = 1.0 if direction == "min" else -1.0
    ranks = stats.mid_ranks(sign * np.array(columns[-1], dtype=np.float64))
    figure = go.Figure(
        go.Parcoords(
            line={"color": ranks.tolist(), "colorscale": _SCALE, "cmin": 1, "cmax": len(ranks)},
            dimensions=[
                _dimension(name, values) for name, values in zip((*names, metric), columns, strict=True)
            ],
            labelangle=-22,
            labelside="top",
            unselected={"line": {"color": color("muted"), "opacity": 0.12}},
        )
    )
    return figure.update_layout(margin={"l": 44, "r": 44, "t": 78, "b": 18}, height=380)


def short_key(key: str, length: int) -> str:
    """Return the end of a long name, which is what tells settings apart."""
    return key if len(key) <= length else f"…{key[-(length - 1) :]}"


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
    return {"label": label, "values": known}


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


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, -(-len(decades) // _MAX_TICKS))
    shown = list(decades)[::every]
    return {"tickvals": shown, "ticktext": [setting_text(10.0**power) for power in shown]}
