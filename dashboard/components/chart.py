"""A chart that keeps its zoom: Plotly in the page itself, drawn in place at each refresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import streamlit as st

from dashboard.assets import plotly_js_url
from dashboard.charts.palette import DARK, LIGHT
from dashboard.components.script import component_key, loader
from dashboard.data.formatting import clean

PALETTES = {"light": dict(LIGHT), "dark": dict(DARK)}
_LONGEST_LABEL = 300
_STYLE = ".telemetry-chart { width: 100%; } .telemetry-chart .modebar { opacity: 0.85; }"


def draw_chart(
    figure: dict[str, Any],
    *,
    key: str,
    label: str,
    height: int = 260,
    name: str = "chart",
    group: str = "page",
    on_view: Callable[[], None] | None = None,
    on_pick: Callable[[], None] | None = None,
) -> None:
    """Show `figure`; `view_of(key)` then tells which part of the axis the browser shows.

    With `on_pick`, `picked_of(key)` tells the number of the bar or point that was clicked: the first of its customdata.

    Charts of one `group` zoom and hover together. `label` is for people who do not see it; `name` that of a saved PNG.
    """
    _component()(
        data={
            "src": plotly_js_url(),
            "figure": orjson.dumps(figure).decode(),
            "label": clean(label)[:_LONGEST_LABEL],
            "height": height,
            "name": clean(name)[:_LONGEST_LABEL],
            "group": group,
            "palettes": PALETTES,
            "pickable": on_pick is not None,
        },
        key=component_key(key),
        on_view_change=on_view or _nothing,
        on_picked_change=on_pick or _nothing,
        default={"view": None, "picked": None},
        height=height + 4,
    )


def view_of(key: str) -> list[float] | None:
    """Return the part of the axis that the chart with this key was zoomed to last, or None for all of it."""
    state = st.session_state.get(component_key(key))
    told = state.get("view") if state else None
    view = told.get("range") if isinstance(told, Mapping) else None
    if isinstance(view, list) and len(view) == 2 and all(isinstance(edge, (int, float)) for edge in view):
        return [float(edge) for edge in view]
    return None


def picked_of(key: str) -> int | None:
    """Return the number of what was clicked last in the chart with this key, or None before that."""
    state = st.session_state.get(component_key(key))
    told = state.get("picked") if state else None
    number = told.get("number") if isinstance(told, Mapping) else None
    return int(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def _component() -> Any:
    # Registered at each use: Streamlit forgets it between scripts in tests, and registering again costs nothing.
    return st.components.v2.component(
        "telemetry_chart",
        html='<div class="telemetry-chart" role="img"></div>',
        css=_STYLE,
        js=loader("chart"),
        isolate_styles=False,
    )


def _nothing() -> None:
    """Streamlit sends a view back only to those who listen."""
