"""Charts as inline SVG as wide as its page; axis labels are HTML next to it, so they keep their size."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from toolkit.telemetry.reports.document import (
    METRIC,
    PROGRESS,
    SECONDS,
    STEP,
    TIME,
    Chart,
    Colour,
    Curve,
    Point,
    Scatter,
)
from toolkit.telemetry.runs.formatting import clean, count, cut, short_number

_PADDING: Final = 0.05
_LARGEST: Final = sys.float_info.max
_LOG_FROM: Final = 8.0
"""A curve whose highest value is this many times its median is drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, linear or logarithmic."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return where `value` is, from 0 at the low end to 1."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        # Halved, so that the range of two huge numbers is not infinite.
        span = self.high / 2 - self.low / 2
        return (value / 2 - self.low / 2) / span if span else 0.5

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Return round values inside the range and their labels."""
        found = _log_ticks(self.low, self.high, most) if self.log else []
        if len(found) < 2:
            found = _linear_ticks(self.low, self.high, most)
        return [(value, tick_text(value)) for value in found if self.low <= value <= self.high]


def x_axis(values: Sequence[float]) -> Axis:
    """Return an axis that ends where the values do."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        return Axis(low - 1.0, high + 1.0) if abs(low) < 1e15 else _around(low)
    return Axis(low, high)


def y_axis(values: Sequence[float], *, from_zero: bool = False, log: bool | None = None) -> Axis:
    """Return an axis for finite `values` that shows all of them, or with `log` all above zero.

    With None it is logarithmic if a few are far above the others.
    """
    if log:
        values = [value for value in values if value > 0] or values
    if not values:
        return Axis(0.0, 1.0)
    low, high = min(values), max(values)
    if low == high:
        return Axis(0.0, 1.0) if low == 0.0 and from_zero else _around(low)
    is_log = high > _LOG_FROM * sorted(values)[len(values) // 2] if log is None else log
    if low > 0 and is_log:
        edge = (high / low) ** _PADDING if high / low < 1e300 else 10.0
        return Axis(low / edge or low, high * edge if high * edge < math.inf else high, log=True)
    if from_zero and low >= 0:
        return Axis(0.0, high * (1 + _PADDING) if high < 1e307 else high)
    padding = _PADDING * (high / 2 - low / 2) * 2
    if not math.isfinite(padding) or abs(low) > 1e307 or abs(high) > 1e307:
        padding = 0.0
    return Axis(low - padding, high + padding)


def tick_text(value: float) -> str:
    """Return a label: 12k, 1.5M, 1e-4."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if size * (10 if unit == "k" else 1) <= abs(value) < 1000 * size:
            return f"{value / size:.4g}{unit}"
    if 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return short_number(value)


def _around(value: float) -> Axis:
    """Return a range with `value` in its middle."""
    half = abs(value) / 2
    if half < 1e-300:
        return Axis(-1.0, 1.0)
    return Axis(max(value - half, -_LARGEST), min(value + half, _LARGEST))


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    span = high / most - low / most
    if span <= 0 or not math.isfinite(span):
        return [low, high]
    size = 10.0 ** math.floor(math.log10(span))
    step = next((size * factor for factor in (1, 2, 5, 10) if size * factor >= span * 0.999), size * 10)
    if step <= 0 or low / step > 1e15 or high / step > 1e15:
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    # A multiple of the step, rounded to its digits: 0.30000000000000004 has too many.
    digits = max(0, -math.floor(math.log10(step)))
    return [
        round(number * step, digits) if digits < 300 else number * step
        for number in range(first, first + most + 2)
    ]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / most))
    decades = [10.0**power for power in range(first, last + 1, every) if -300 < power < 300]
    inside = [value for value in decades if low <= value <= high]
    if len(inside) >= 3 or every > 1:
        return inside
    finer = [factor * value for value in decades for factor in (1, 2, 5)]
    return [value for value in finer if low <= value <= high]


SIZE: Final = 1000
"""Width and height of the coordinates inside a chart."""
COLOURS: Final = 12
_MAX_NAME: Final = 60
_TICKS: Final = (6, 5)
_MIN_BAND: Final = 4.0
_DASHES: Final = {"dash": "7 4", "dot": "2 4", "dashdot": "9 3 2 3"}
_LAST_SECOND: Final = 4_102_444_800
"""Of the year 2099: what is later is no time of a run."""


def chart_html(chart: Chart, curve_ids: Sequence[int]) -> str:
    """Return a chart as a figure; `curve_ids` say which curves of the report's data it draws."""
    curves = [_shown(line.curve, chart.window) for line in chart.lines]
    points = [point for curve in curves for part in curve.parts for point in part]
    xs = [point.x for point in points]
    x = Axis(*chart.window) if chart.window is not None and chart.window[0] < chart.window[1] else x_axis(xs)
    if chart.log_x and any(value > 0 for value in xs):
        x = Axis(max(x.low, min(value for value in xs if value > 0)), x.high, log=True)
        curves = [curve.within(x.low, x.high) for curve in curves]
    finite = [point.y for point in points if math.isfinite(point.y)]
    for line in chart.lines:
        # One run far away from the others of its group makes a wide band: some of its edge may be left out.
        edges = sorted(edge for _, *both in line.band for edge in both if math.isfinite(edge))
        finite += edges[len(edges) // 20 : len(edges) - len(edges) // 20]
    levels = [level for level in chart.levels if math.isfinite(level.value)]
    y = y_axis([*finite, *(level.value for level in levels)], from_zero=chart.from_zero, log=chart.log_y)
    inside = [grid_html(x, y, _TICKS)]
    for band in chart.bands:
        inside.append(band_html(x, band.start, band.end, f"band {band.tone}", band.label))
    for number, (line, curve) in enumerate(zip(chart.lines, curves, strict=True)):
        for found in curve.not_finite:
            about = f"{count(found.values)} values of {line.label} are NaN or infinite"
            inside.append(band_html(x, found.first, found.last, "nan", about))
        if line.band:
            inside.append(f'<path {look("spread", line.colour)} d="{_area(line.band, x, y)}"/>')
        drawn = look("line", line.colour, line.dash)
        inside.append(f'<path {drawn} data-line="{number}" d="{_path(curve, x, y)}"/>')
    for level in levels:
        at = _place(1 - y.share(level.value))
        inside.append(
            f'<path class="level" d="M0 {at}H{SIZE}"><title>{text_html(level.label)}</title></path>'
        )
    label = _described(chart, curves)
    legend = "".join(
        f"<li><i {look('key', line.colour)}></i>{text_html(line.label, _MAX_NAME)}</li>"
        for line in chart.lines
    )
    several = f'<ul class="legend">{legend}</ul>' if len(chart.lines) > 1 else ""
    box = " ".join(repr(float(value)) for value in (x.low, x.high, y.low, y.high))
    ids = " ".join(map(str, curve_ids))
    axis = curves[0].axis if curves else STEP
    return (
        f'<figure class="chart{" large" if chart.large else ""}" data-curves="{ids}" data-box="{box}"'
        f' data-log="{int(y.log)}" data-logx="{int(x.log)}">'
        f"<figcaption><b>{text_html(chart.title)}</b>{' <small>log scale</small>' if y.log else ''}{several}"
        "</figcaption>"
        f"{frame_html(x, y, ''.join(inside), label, _x_name(axis), _times(x) if axis == TIME else None)}"
        f'<p class="note">{text_html(chart.note or _counted(curves), 400)}</p></figure>'
    )


def scatter_html(chart: Scatter) -> str:
    """Return a scatter chart as a figure."""
    xs = [dot.x for dot in chart.dots]
    log_x = chart.log_x and min(xs, default=0.0) > 0 and min(xs) < max(xs)
    if chart.categories:
        x = Axis(-0.5, len(chart.categories) - 0.5)
    elif log_x:
        edge = (max(xs) / min(xs)) ** 0.05
        x = Axis(min(xs) / edge, max(xs) * edge, log=True)
    else:
        x = y_axis(xs)
        x = x if not x.log else Axis(min(xs), max(xs))
    y = y_axis([dot.y for dot in chart.dots])
    inside = [grid_html(x, y, (0 if chart.categories else _TICKS[0], _TICKS[1]))]
    for dot in sorted(chart.dots, key=lambda dot: dot.is_best):
        name = "best" if dot.is_best else "open" if dot.is_open else "plain"
        at = f"M{_place(x.share(dot.x))} {_place(1 - y.share(dot.y))}h0"
        title = f"{cut(clean(dot.name), _MAX_NAME)}: {short_number(dot.y)}"
        inside.append(f'<path class="dot {name}" d="{at}"><title>{text_html(title)}</title></path>')
        if dot.is_open:
            inside.append(f'<path class="dot hole" d="{at}"/>')
    label = f"{chart.y} by {chart.x}: {len(chart.dots)} runs"
    ticks = list(enumerate(chart.categories)) if chart.categories else None
    return (
        f'<figure class="chart"><figcaption><b>{text_html(chart.title)}</b></figcaption>'
        f"{frame_html(x, y, ''.join(inside), label, chart.x, ticks)}</figure>"
    )


def look(name: str, colour: Colour, dash: str = "") -> str:
    """Return the attributes of something in the colour of a run."""
    if isinstance(colour, int) or re.fullmatch("#[0-9a-fA-F]{6}", colour) is None:
        number = colour if isinstance(colour, int) else 0
        kind = f" d{number // COLOURS % 4}" if name == "line" and not dash else ""
        classes, style = f"{name} c{number % COLOURS}{kind}", ""
    else:
        classes, style = name, f"color:{colour};"
    lengths = _DASHES.get(dash, dash)
    if re.fullmatch(r"\d+(px)?([ ,]+\d+(px)?)+", lengths):
        style += f"stroke-dasharray:{lengths}"
    return f'class="{classes}"' + (f' style="{style}"' if style else "")


def text_html(text: str, limit: int = 200) -> str:
    """Return untrusted text as HTML."""
    return escape(cut(clean(text), limit))


def _shown(curve: Curve, window: tuple[float, float] | None) -> Curve:
    return curve if window is None else curve.within(*window)


def frame_html(
    x: Axis,
    y: Axis,
    inside: str,
    label: str,
    x_name: str,
    x_ticks: Sequence[tuple[float, str]] | None = None,
    most: tuple[int, int] = _TICKS,
) -> str:
    """Return a plot: axis labels around an SVG with `inside`; `most` are about the ticks on the x and the y axis."""
    ys = "".join(
        f'<span style="top:{100 * (1 - y.share(at)):.1f}%">{text_html(text)}</span>'
        for at, text in y.ticks(most[1])
    )
    xs = "".join(
        f'<span style="left:{100 * x.share(at):.1f}%">{text_html(text, 18)}</span>'
        for at, text in (x.ticks(most[0]) if x_ticks is None else x_ticks)
    )
    return (
        f'<div class="plot"><div class="ys" aria-hidden="true">{ys}</div><div class="area">'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{text_html(label, 600)}">'
        f'{inside}</svg><div class="cursor"></div><div class="tip" role="status"></div></div>'
        f'<div class="xs" aria-hidden="true">{xs}</div><div class="xname">{text_html(x_name, 60)}</div></div>'
    )


def grid_html(x: Axis, y: Axis, most: tuple[int, int]) -> str:
    """Return lines at about so many ticks of the x and the y axis."""
    across = [f"M0 {_place(1 - y.share(at))}H{SIZE}" for at, _ in y.ticks(most[1])]
    upright = [f"M{_place(x.share(at))} 0V{SIZE}" for at, _ in (x.ticks(most[0]) if most[0] else ())]
    return f'<path class="grid" d="{"".join(across)}"/><path class="grid upright" d="{"".join(upright)}"/>'


def band_html(x: Axis, start: float, end: float, name: str, label: str) -> str:
    """Return a range of the x axis, from top to bottom."""
    left = SIZE * min(max(x.share(start), 0.0), 1.0)
    right = SIZE * min(max(x.share(end), 0.0), 1.0)
    width = max(right - left, _MIN_BAND)
    left = min(left, SIZE - width) if right > left else max(0.0, left - width / 2)
    return (
        f'<rect class="{name}" x="{left:.1f}" y="0" width="{width:.1f}" height="{SIZE}">'
        f"<title>{text_html(label)}</title></rect>"
    )


def _path(curve: Curve, x: Axis, y: Axis) -> str:
    """Return a line through the finite points, with gaps at NaN and infinity; a lone point is a dot."""
    found: list[str] = []
    for part in curve.parts:
        open_line: list[str] = []
        for point in [*part, Point(0.0, math.nan)]:
            if math.isfinite(point.y) and (point.y > 0 or not y.log) and (point.x > 0 or not x.log):
                open_line.append(f"{_place(x.share(point.x))} {_place(1 - y.share(point.y))}")
                continue
            if open_line:
                found.append("M" + "L".join(open_line) + ("h0" if len(open_line) == 1 else ""))
            open_line = []
    return "".join(found)


def _area(band: Sequence[tuple[float, float, float]], x: Axis, y: Axis) -> str:
    """Return the outline of an area, inside the frame."""
    inside = [row for row in band if x.low <= row[0] <= x.high and all(map(math.isfinite, row))]
    edges = [(at, min(max(edge, y.low), y.high)) for at, _, edge in inside]
    edges += [(at, min(max(edge, y.low), y.high)) for at, edge, _ in reversed(inside)]
    places = [f"{_place(x.share(at))} {_place(1 - y.share(edge))}" for at, edge in edges]
    return f"M{'L'.join(places)}Z" if places else ""


def _place(share: float) -> str:
    text = f"{SIZE * share:.1f}"
    return text.removesuffix(".0")


def _x_name(axis: str) -> str:
    known = {SECONDS: "seconds since the start", PROGRESS: "progress in %"}
    return known.get(axis, axis.removeprefix(METRIC))


def _times(x: Axis) -> list[tuple[float, str]]:
    """Return six times on an axis of wall time, and how they are written."""
    times = [x.low + (x.high - x.low) * part / 6 for part in range(1, 6)]
    form = "%H:%M:%S" if x.high - x.low < 600 else "%d %b %H:%M"
    return [(at, time.strftime(form, time.localtime(at))) for at in times if 0 <= at < _LAST_SECOND]


def _described(chart: Chart, curves: Sequence[Curve]) -> str:
    """Return what a chart shows, for people who cannot see it."""
    parts = []
    for line, curve in list(zip(chart.lines, curves, strict=True))[:6]:
        text = f"{clean(line.label)[:_MAX_NAME]}: {count(curve.records)} records, last {short_number(curve.last)}"
        if curve.low is not None and curve.high is not None:
            text += f", lowest {short_number(curve.low.y)}, highest {short_number(curve.high.y)}"
        if curve.not_finite:
            text += f", {count(curve.values_not_finite)} NaN or infinite"
        parts.append(text)
    more = len(chart.lines) - len(parts)
    return f"{clean(chart.title)}. " + "; ".join(parts) + (f"; and {more} more" if more else "")


def _counted(curves: Sequence[Curve]) -> str:
    drawn, records = sum(curve.drawn for curve in curves), sum(curve.records for curve in curves)
    text = (
        f"All {count(records)} records."
        if drawn >= records
        else f"{count(drawn)} points for {count(records)} records, with all extremes."
    )
    odd = sum(curve.values_not_finite for curve in curves)
    return f"{text} {count(odd)} NaN or infinite." if odd else text
