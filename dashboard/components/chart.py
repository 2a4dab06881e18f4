"""A Plotly chart that is updated in place at each refresh and keeps its zoom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import streamlit as st

from dashboard.assets import SMALL_PLOTLY_TRACES, plotly_js_url, whole_plotly_js_url
from dashboard.charts.palette import DARK, LIGHT
from dashboard.components.script import component_key, loader
from dashboard.data.formatting import clean, html_text

PALETTES = {"light": dict(LIGHT), "dark": dict(DARK)}
_MAX_LABEL = 300
_STYLE = """
.telemetry-chart { width: 100%; position: relative; }
.telemetry-chart .modebar { opacity: 0.85; }
.telemetry-chart:fullscreen { background: var(--st-background-color); padding: 12px; box-sizing: border-box; }
.telemetry-follows .hoverlayer .legend, .telemetry-follows .hoverlayer .hovertext { display: none; }
.telemetry-chip {
  position: absolute; z-index: 1; top: 0; right: 10px; pointer-events: none; font-size: 0.75rem;
  font-variant-numeric: tabular-nums; color: var(--st-text-color); opacity: 0.85;
}
@media (pointer: coarse) { .telemetry-chart, .telemetry-chart * { touch-action: pan-y pinch-zoom !important; } }
"""


def draw_chart(
    figure: dict[str, Any],
    *,
    key: str,
    label: str,
    height: int = 260,
    name: str = "chart",
    heading: str = "",
    y_title: str = "",
    group: str = "page",
    on_view: Callable[[], None] | None = None,
    on_pick: Callable[[], None] | None = None,
) -> None:
    """Show `figure`; `view_of(key)` then returns the visible x-axis range.

    With `on_pick`, `picked_of(key)` returns the number of the clicked bar or point: the first of its customdata.

    Charts of one `group` zoom and hover together. `label` is for screen readers, `name` is the file of a saved
    picture, `heading` its title and `y_title` that of its y axis.
    """
    _component()(
        data={
            "src": _library(figure),
            "figure": orjson.dumps(figure).decode(),
            "label": clean(label)[:_MAX_LABEL],
            "height": height,
            "name": clean(name)[:_MAX_LABEL],
            "heading": html_text(heading or name, _MAX_LABEL),
            "axis": html_text(y_title, _MAX_LABEL),
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
    """Return the x-axis range this chart was last zoomed to, or None for all of it."""
    state = st.session_state.get(component_key(key))
    sent = state.get("view") if state else None
    view = sent.get("range") if isinstance(sent, Mapping) else None
    if isinstance(view, list) and len(view) == 2 and all(isinstance(edge, (int, float)) for edge in view):
        return [float(edge) for edge in view]
    return None


def picked_of(key: str) -> int | None:
    """Return the number of the bar or point clicked last in this chart, or None."""
    state = st.session_state.get(component_key(key))
    sent = state.get("picked") if state else None
    number = sent.get("number") if isinstance(sent, Mapping) else None
    return int(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def _component() -> Any:
    # Registered at each use: tests reset Streamlit's registry, and registering again is cheap.
    return st.components.v2.component(
        "telemetry_chart",
        html='<div class="telemetry-chart" role="img"></div>',
        css=_STYLE,
        js=loader("chart"),
        isolate_styles=False,
    )


def _library(figure: Mapping[str, Any]) -> str:
    kinds = {trace.get("type", "scatter") for trace in figure.get("data", ())}
    return plotly_js_url() if kinds <= SMALL_PLOTLY_TRACES else whole_plotly_js_url()


def _nothing() -> None:
    """Streamlit reports a state only if a callback is registered."""
