"""Curves drawn in the browser from tiles: what a chart shows goes to it once, the values come from `/curves`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import streamlit as st

from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.runs.curve_tiles import TileQuery
from toolkit.telemetry.runs.formatting import clean, cut
from toolkit.telemetry.runs.store import RunStore

from .. import session
from ..charts.palette import DARK, LIGHT, SERIES
from .curve_picture import curve_picture
from .script import redraw_only, sent_by, show_component

Window: TypeAlias = tuple[float, float]
Tone: TypeAlias = Literal["muted", "info", "good", "warning", "critical"]
Statistic: TypeAlias = Literal["mean", "median", "range"]

_MAX_TEXT: Final = 300
_MAX_MARKS: Final = 60
"""The newest ones; more would cover the curve."""
_STATISTICS: Final = ("mean", "median", "range")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSpec:
    """One metric of one run and rank; `smooth` if its metric may be, with the logged curve under it."""

    run: str
    metric: str
    label: str
    colour: str | int = 0
    """`#rrggbb`, a name of the palette, or the number of a line colour."""
    dash: str = "solid"
    rank: int = 0
    smooth: bool = True
    band: tuple[str, str] | None = None
    """Metrics with the minimum and the maximum of the steps between two records, drawn as an area."""
    pale: bool = False
    """Whether it is the baseline: it does not decide which part of the x axis is shown."""
    name: str = ""
    """The run's name, for tooltips and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Runs drawn as one line and a band."""

    label: str
    colour: str | int
    curves: tuple[CurveSpec, ...]
    dash: str = "solid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line with a label, on the axes whose place is known; without a metric in every chart."""

    text: str
    step: float | None = None
    time: float | None = None
    tone: Tone = "muted"
    metric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A shaded range of steps."""

    start: float
    end: float
    tone: Tone = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A reference value: a line across the chart."""

    y: float
    text: str
    tone: Tone = "muted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpec:
    """What one chart draws; `heading` is the title of saved pictures, and the y range includes `levels`."""

    title: str
    curves: tuple[CurveSpec, ...] = ()
    groups: tuple[GroupSpec, ...] = ()
    base: str | None = None
    """The label of the group, or the key of the run, that is subtracted from all others."""
    height: int = 260
    unit: str = ""
    fit: bool = False
    """Whether the y range may leave out a few extreme values; they are marked at the edge."""
    from_zero: bool = False
    legend: bool = False
    limits: tuple[tuple[float, str], ...] = ()
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    window: Window | None = None
    """A fixed x range: the chart does not zoom together with others. A fixed axis does not follow the switches."""
    axis: str | None = None
    zoom_group: str = "page"
    live: bool = False
    heading: str = ""
    star: bool | None = None
    """Whether its metric is pinned; None without a star."""
    forecast: bool = False
    """Whether the switch *Forecast* draws where its curves will go, which `forecast_line` gives to the browser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How the charts of a page are drawn: the switches above them, as the address has them."""

    axis: str = "step"
    smoothing: session.Smoothing = "auto"
    log_x: bool = False
    log_y: bool = False
    marks: bool = True
    forecast: bool = False
    window: Window | None = None
    statistic: Statistic = "mean"
    """What a group shows: mean and standard deviation, median and quartiles, or mean and range."""


def draw_curves(spec: ChartSpec, *, key: str, on_star: Callable[[], None] | None = None) -> None:
    """Show the chart `spec`. The browser asks for its values, zooms and refreshes without a rerun of the page.

    `on_star` is what a click on the star does.
    """
    data = chart_data(spec, refresh_s=session.refresh_seconds())
    if is_picture := bool(sent_by(key, "picture")):
        curves = (*spec.curves, *(curve for group in spec.groups for curve in group.curves))
        data["picture"] = picture_of(session.store(), curves, spec.height, has_legend=spec.legend)
    show_component(
        "curve_chart",
        '<div class="telemetry-curves" role="group"></div>',
        data=data,
        key=key,
        on_pin_change=on_star or redraw_only,
        on_picture_change=redraw_only,
        default={"picture": None},
        height="content" if is_picture else spec.height,
    )


def picture_of(store: RunStore, curves: Sequence[CurveSpec], height: int, **shown: bool) -> str:
    """Return what `curve_picture` draws of `curves`."""
    drawn = [
        (
            one.label,
            _both_themes(one.colour),
            one.pale,
            partial(store.tiles, one.run, one.metric, TileQuery(), rank=one.rank),
        )
        for one in curves
    ]
    return curve_picture(drawn, height, **shown)


def chart_data(spec: ChartSpec, *, refresh_s: float | None) -> dict[str, Any]:
    """Return what the browser is sent for a chart: plain JSON, without what has its default."""
    data: dict[str, Any] = _plain(spec)
    data["marks"] = [_plain(mark) for mark in spec.marks[-_MAX_MARKS:]]
    if spec.live and refresh_s is not None:
        data["refresh"] = refresh_s
    return {name: value for name, value in data.items() if value != []}


def view_switches(
    *,
    axes: Sequence[tuple[str, str]],
    key: str = "view",
    statistics: Sequence[str] = (),
    forecast: bool = False,
) -> View:
    """Show the switches for all charts of a page in one row, and return their values.

    `axes` are values and labels of the x axis. They act in the browser at once; the address is updated when they
    settle, which reruns nothing but this row. Also call it with no axes where charts zoom without a row of switches.
    """
    _switch_row(tuple(axes), key, tuple(statistics), forecast)
    return view_in_url(axes)


@st.fragment
def _switch_row(
    axes: tuple[tuple[str, str], ...], key: str, statistics: tuple[str, ...], forecast: bool
) -> None:
    view = view_in_url(axes)
    show_component(
        "curve_switches",
        '<div class="telemetry-switches" role="group" aria-label="How the charts are drawn"></div>',
        data={
            "axes": [list(axis) for axis in axes],
            "statistics": list(statistics),
            "forecast": forecast,
            "view": view_data(view),
            "answered": sent_by(key, "view").get("at"),
        },
        key=key,
        on_view_change=lambda: set_view_in_url(sent_by(key, "view"), axes),
        default={"view": None},
    )


def view_in_url(axes: Sequence[tuple[str, str]]) -> View:
    """Return the view in the address; what is missing or makes no sense there has its default."""
    asked = st.query_params
    named = {text.lower(): value for value, label in axes for text in (value, label)}
    axis = asked.get("x", "")
    return View(
        axis=axis if axis.startswith("metric:") else named.get(axis.lower(), axes[0][0] if axes else "step"),
        smoothing=session.SMOOTHINGS.get(asked.get("smooth", ""), "auto"),
        log_x=asked.get("logx", "").lower() in ("true", "1"),
        log_y=asked.get("log", "").lower() in ("true", "1"),
        marks=asked.get("marks", "").lower() not in ("false", "0"),
        forecast=asked.get("forecast", "").lower() in ("true", "1"),
        window=session.window(),
        statistic=next((one for one in _STATISTICS if one == asked.get("stat")), "mean"),
    )


def view_data(view: View) -> dict[str, Any]:
    """Return the view as the browser has it in `curveView`."""
    names = {"log_x": "logX", "log_y": "logY"}
    return {names.get(name, name): value for name, value in asdict(view).items()}


def set_view_in_url(sent: Mapping[str, Any], axes: Sequence[tuple[str, str]]) -> None:
    """Put what the browser sent into the address; values that have their default are not in it."""
    axis, statistic = sent.get("axis"), sent.get("statistic")
    first = axes[0][0] if axes else "step"
    smooth = [text for text, value in session.SMOOTHINGS.items() if value == sent.get("smoothing") != "auto"]
    changes = {
        "x": dict(axes).get(axis, axis) if isinstance(axis, str) and axis != first else None,
        "smooth": smooth[0] if smooth else None,
        "log": "true" if sent.get("logY") is True else None,
        "logx": "true" if sent.get("logX") is True else None,
        "marks": "false" if sent.get("marks") is False else None,
        "forecast": "true" if sent.get("forecast") is True else None,
        "stat": statistic if statistic in _STATISTICS[1:] else None,
    }
    session.put_in_url(changes)
    edges = sent.get("window")
    is_range = isinstance(edges, (list, tuple)) and len(edges) == 2 and all(map(is_number, edges))
    session.set_window((float(edges[0]), float(edges[1])) if is_range and edges[0] < edges[1] else None)  # type: ignore[index]


def _plain(one: Any) -> Any:
    """Return a part of a spec as plain JSON, without what has its default."""
    found: dict[str, Any] = {}
    for each in fields(one):
        value = getattr(one, each.name)
        if each.name == "colour":
            found[each.name] = list(_both_themes(value))
        elif each.default is MISSING or value != each.default:
            found[each.name] = _value(value, is_name=each.name in ("run", "metric", "band", "base", "axis"))
    return found


def _value(value: Any, *, is_name: bool) -> Any:
    if isinstance(value, str):
        # A name must come back as it is; a character that has no UTF-8 form cannot be sent at all.
        return value.encode("utf-8", "replace").decode() if is_name else cut(clean(value), _MAX_TEXT)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_value(part, is_name=is_name) for part in value]
    return _plain(value) if hasattr(value, "__dataclass_fields__") else value


def _both_themes(colour: str | int) -> tuple[str, str]:
    """Return a colour in the light and in the dark theme."""
    if isinstance(colour, str) and colour.startswith("#"):
        return colour, colour
    name = colour if isinstance(colour, str) else f"series-{colour % SERIES}"
    return LIGHT.get(name, LIGHT["muted"]), DARK.get(name, DARK["muted"])
