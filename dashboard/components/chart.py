"""A Plotly chart that is updated in place at each refresh and keeps its zoom."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go

from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.runs.formatting import clean, html_text

from ..assets import SMALL_PLOTLY_TRACES, plotly_js_url, whole_plotly_js_url
from ..charts.palette import PALETTES
from .script import redraw_only, sent_by, show_component

_MAX_LABEL = 300


def draw_chart(
    figure: go.Figure,
    *,
    key: str,
    label: str,
    name: str = "chart",
    heading: str = "",
    on_view: Callable[[], None] | None = None,
    on_pick: Callable[[], None] | None = None,
) -> None:
    """Show `figure`; `view_of(key)` then returns the visible x-axis range.

    With `on_pick`, `picked_of(key)` returns the number of the clicked bar or point: the first of its customdata.

    `label` is for screen readers, `name` is the file of a saved picture and `heading` its title.
    """
    # The theme is that of the page.
    figure.layout.template = None
    kinds = {trace.type for trace in figure.data}
    show_component(
        "chart",
        '<div class="telemetry-chart" role="group"></div>',
        data={
            "src": plotly_js_url() if kinds <= SMALL_PLOTLY_TRACES else whole_plotly_js_url(),
            "figure": figure.to_json(),
            "label": clean(label)[:_MAX_LABEL],
            "height": figure.layout.height,
            "name": clean(name)[:_MAX_LABEL],
            "heading": html_text(heading or name, _MAX_LABEL),
            "palettes": PALETTES,
            "pickable": on_pick is not None,
        },
        key=key,
        on_view_change=on_view or redraw_only,
        on_picked_change=on_pick or redraw_only,
        default={"view": None, "picked": None},
        height=figure.layout.height + 4,
    )


def view_of(key: str) -> list[float] | None:
    """Return the x-axis range this chart was last zoomed to, or None for all of it."""
    view = sent_by(key, "view").get("range")
    if isinstance(view, list) and len(view) == 2 and all(isinstance(edge, (int, float)) for edge in view):
        return [float(edge) for edge in view]
    return None


def picked_of(key: str) -> int | None:
    """Return the number of the bar or point clicked last in this chart, or None."""
    number = sent_by(key, "picked").get("number")
    return int(number) if is_number(number) else None
