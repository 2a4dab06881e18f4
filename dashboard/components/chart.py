"""A Plotly chart that is updated in place at each refresh and keeps its zoom."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
import streamlit as st

from dashboard.assets import SMALL_PLOTLY_TRACES, plotly_js_url, whole_plotly_js_url
from dashboard.charts.palette import DARK, LIGHT
from dashboard.components.script import component_key, loader
from toolkit.runfolder.untrusted import is_number
from toolkit.runs.columns.export import TooManyRows
from toolkit.runs.formatting import clean, html_text

PALETTES = {"light": dict(LIGHT), "dark": dict(DARK)}
_MAX_LABEL = 300
_CSV_WANTED = "_csv_wanted"
_STYLE = """
.telemetry-chart { width: 100%; position: relative; }
.telemetry-chart .modebar { opacity: 0.85; }
.telemetry-chart:fullscreen { background: var(--st-background-color); padding: 12px; box-sizing: border-box; }
.telemetry-chip {
  position: absolute; z-index: 1; top: 0; right: 10px; pointer-events: none; font-size: 0.75rem;
  font-variant-numeric: tabular-nums; color: var(--st-text-color); opacity: 0.85;
}
[data-testid="stElementContainer"]:has(.telemetry-star) { overflow: visible !important; }
.telemetry-star {
  position: absolute; z-index: 2; top: -2.1rem; right: 0; min-width: 28px; min-height: 28px; padding: 0; border: 0;
  background: transparent; color: var(--st-text-color); opacity: 0.75; font-size: 1.1rem; line-height: 1;
  cursor: pointer;
}
.telemetry-star[aria-pressed="true"] { color: light-dark(#8A5A00, #F2C14E); opacity: 1; }
.telemetry-chart:fullscreen .telemetry-star { display: none; }
.telemetry-cross {
  position: absolute; width: 0; z-index: 1; pointer-events: none;
  border-left: 1px solid color-mix(in srgb, var(--st-text-color) 45%, transparent);
}
.telemetry-cross-dot {
  position: absolute; left: -4.5px; width: 8px; height: 8px; margin-top: -4px; border-radius: 50%;
}
.telemetry-tip {
  position: fixed; z-index: 1000000; pointer-events: none; max-width: min(30rem, calc(100vw - 8px)); padding: 6px 10px;
  box-sizing: border-box; font-size: 0.8rem; line-height: 20px; font-variant-numeric: tabular-nums;
  color: var(--st-text-color); background: var(--st-background-color); border: 1px solid var(--st-border-color);
  border-radius: var(--st-base-radius); box-shadow: 0 2px 10px rgba(0, 0, 0, 0.25);
}
.telemetry-tip-head { font-weight: 600; }
.telemetry-tip-rows { display: grid; grid-template-columns: auto minmax(0, 1fr) auto; column-gap: 8px; }
.telemetry-tip-dot { width: 9px; height: 9px; border-radius: 50%; align-self: center; }
.telemetry-tip-name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; unicode-bidi: isolate; }
.telemetry-tip-value { text-align: right; white-space: nowrap; }
.telemetry-tip-nearest { font-weight: 700; }
.telemetry-tip-more { grid-column: 2 / -1; }
.telemetry-tip-pale, .telemetry-tip-more { opacity: 0.75; font-weight: 400; }
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
    star: tuple[bool, Callable[[], None]] | None = None,
    csv: Callable[[], bytes] | None = None,
) -> None:
    """Show `figure`; `view_of(key)` then returns the visible x-axis range.

    With `on_pick`, `picked_of(key)` returns the number of the clicked bar or point: the first of its customdata.

    Charts of one `group` zoom and hover together. `label` is for screen readers, `name` is the file of a saved
    picture, `heading` its title and `y_title` that of its y axis. `star` says whether the metric is pinned, and what
    a click on its star does. `csv` returns the values for the button that saves them, and is called when that is
    clicked; without it the browser saves what it draws.
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
            "pinned": None if star is None else star[0],
            **_download(key, csv),
        },
        key=component_key(key),
        on_view_change=on_view or _nothing,
        on_picked_change=on_pick or _nothing,
        on_pin_change=_nothing if star is None else star[1],
        on_csv_change=partial(_ask_for_csv, key),
        default={"view": None, "picked": None, "csv": None},
        height=height + 4,
    )


def _ask_for_csv(key: str) -> None:
    st.session_state[_CSV_WANTED] = key


def _download(key: str, csv: Callable[[], bytes] | None) -> dict[str, Any]:
    """Return what a chart is sent for its CSV button: that there is one, and the values right after a click."""
    if csv is None:
        return {}
    if st.session_state.get(_CSV_WANTED) != key:
        return {"csv": True}
    del st.session_state[_CSV_WANTED]
    try:
        text = csv().decode()
    except TooManyRows as error:
        st.toast(str(error), icon=":material/warning:")
        return {"csv": True}
    return {"csv": True, "download": {"text": text, "at": time.time()}}


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
    return int(number) if is_number(number) else None


def _component() -> Any:
    # Registered at each use: tests reset Streamlit's registry, and registering again is cheap.
    return st.components.v2.component(
        "telemetry_chart",
        html='<div class="telemetry-chart" role="group"></div>',
        css=_STYLE,
        js=loader("chart"),
        isolate_styles=False,
    )


def _library(figure: Mapping[str, Any]) -> str:
    kinds = {trace.get("type", "scatter") for trace in figure.get("data", ())}
    return plotly_js_url() if kinds <= SMALL_PLOTLY_TRACES else whole_plotly_js_url()


def _nothing() -> None:
    """Streamlit reports a state only if a callback is registered."""
