"""Spans and events as bars along the clock."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import plotly.graph_objects as go

from toolkit.telemetry.runs.formatting import duration, html_text
from toolkit.telemetry.runs.store import Floats
from toolkit.telemetry.timing import names

from .packing import FRAME, Window, x_values
from .palette import color, entry_color, series_color

_COLORS: Final = {
    # The parts of a step share a row, so each has its own colour.
    names.FORWARD: entry_color(names.IN_TRAINING),
    names.BACKWARD: color("run-6"),
    names.OPTIMIZER_UPDATE: color("run-8"),
    names.ZERO_GRAD: color("run-8", 0.6),
    names.CHECKPOINT_SAVE_FINALIZATION: entry_color(names.IN_CHECKPOINT, 0.7),
    names.VALIDATION_ITERATION: entry_color(names.IN_VALIDATION, 0.7),
    names.TESTING_ITERATION: entry_color(names.IN_VALIDATION, 0.7),
    # Enclosing spans stay in the background.
    names.APPLICATION: color("muted", 0.3),
    names.TRAINING_LOOP: color("muted", 0.45),
    names.TRAINING_ITERATION: entry_color(names.IN_TRAINING, 0.6),
}
_OTHER: Final = ("run-9", "run-4", "run-7", "run-10", "run-11")
"""Colours of spans with other names: those that no entry of the ledger has."""
_LABEL_LENGTH: Final = 30
_LAYOUT: Final = {**FRAME, "barmode": "overlay"}


@dataclass(frozen=True, slots=True)
class Bar:
    """An event with a duration, or at one time (0 seconds)."""

    row: str
    start: float
    seconds: float
    text: str


def bars_figure(bars: Sequence[Bar], revision: str, *, shaded: Window | None = None) -> go.Figure:
    """Return one row per name, with bars, or diamonds for events of no duration. `shaded` is a marked time window."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    figure = go.Figure()
    for number, row in enumerate(rows):
        for is_long in (True, False):
            found = [bar for bar in bars if bar.row == row and (bar.seconds > 0) == is_long]
            shared = {
                "y": [html_text(row)] * len(found),
                "text": [html_text(bar.text) for bar in found],
                "marker_color": series_color(number),
                "showlegend": False,
            }
            starts = x_values(np.array([bar.start for bar in found]))
            if found and is_long:
                figure.add_bar(
                    orientation="h",
                    base=starts,
                    x=[bar.seconds * 1000 for bar in found],
                    customdata=[duration(bar.seconds) for bar in found],
                    textposition="none",
                    hovertemplate="%{text}<br>%{customdata}<extra></extra>",
                    **shared,
                )
            elif found:
                figure.add_scatter(
                    mode="markers",
                    x=starts,
                    hovertemplate="%{text}<br>%{x|%H:%M:%S}<extra></extra>",
                    marker_symbol="diamond",
                    marker_size=9,
                    **shared,
                )
    if shaded is not None:
        low, high = x_values(np.array(shaded))
        # The outline keeps it visible if it is narrower than a pixel.
        line = {"width": 1, "color": color("info", 0.6)}
        figure.add_vrect(x0=low, x1=high, layer="below", fillcolor=color("info", 0.15), line=line)
    names_of_rows = [html_text(row) for row in reversed(rows)]
    return figure.update_layout(
        **_LAYOUT,
        xaxis={"type": "date", "tickangle": 0, "uirevision": revision},
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names_of_rows,
            "fixedrange": True,
        },
        bargap=0.35,
        height=70 + 38 * len(rows),
        uirevision=revision,
    )


# ---------------------------------------------------------------- spans


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanBars:
    """Bars of spans with one name and one state."""

    name: str
    state: Literal["done", "failed", "open", "died"]
    row: Sequence[int]
    """The row of each bar."""
    start: Floats
    """Wall time in seconds."""
    seconds: Floats
    texts: Sequence[str]
    """Hover texts; lines are separated by newlines."""
    ids: Sequence[int]
    """The number that a click reports."""
    thickness: float = 0.8
    legend: str | None = None


def span_color(name: str) -> str:
    """Return the colour of a span: the same in every run, and that of its entry in the time ledger."""
    known = _COLORS.get(name)
    if known is not None:
        return known
    entry = names.ENTRY_OF.get(name) or names.entry_like(name)
    if entry is not None:
        return entry_color(entry)
    return color(_OTHER[zlib.crc32(name.encode("utf-8", "replace")) % len(_OTHER)])


def spans_figure(
    groups: Sequence[SpanBars], rows: Sequence[str], window: Window | None, revision: str
) -> go.Figure:
    """Return bars over time in `rows`, the first at the top, zoomed to `window`; None for all."""
    in_legend: set[str] = set()
    figure = go.Figure()
    for group in groups:
        shows = group.legend is not None and group.legend not in in_legend
        in_legend.add(group.legend or "")
        figure.add_bar(
            orientation="h",
            y=list(group.row),
            base=x_values(group.start).round(3),
            x=(group.seconds * 1000).round(4),
            width=group.thickness,
            text=[html_text(text, 600).replace("\n", "<br>") for text in group.texts],
            customdata=[[number] for number in group.ids],
            textposition="none",
            hovertemplate=f"<b>{_in_template(group.name)}</b><br>%{{text}}<extra></extra>",
            name=html_text(group.legend or group.name, 40),
            legendgroup=group.legend or "",
            showlegend=shows,
            marker=_marker(group),
        )
    return figure.update_layout(
        **_LAYOUT,
        xaxis={
            "type": "date",
            "range": None if window is None else x_values(np.array(window)),
            "tickangle": 0,
            "uirevision": f"{revision}|{window}",
        },
        yaxis={
            "tickvals": list(range(len(rows))),
            "ticktext": [html_text(row, _LABEL_LENGTH) for row in rows],
            "range": [len(rows) - 0.5, -0.5],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        },
        dragmode="zoom",
        height=(90 if in_legend - {""} else 60) + 32 * max(2, min(len(rows), 40)),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        uirevision=revision,
    )


def _marker(group: SpanBars) -> go.bar.Marker:
    fill = color("critical") if group.state == "failed" else span_color(group.name)
    # An outline in the same colour keeps a narrow bar visible.
    edge = color("critical") if group.state in ("failed", "died") else fill
    marker = go.bar.Marker(color=fill, line={"width": 0.5 if edge == fill else 1.5, "color": edge})
    if group.state in ("open", "died"):
        marker.pattern = {"shape": "/", "size": 6, "solidity": 0.3, "fgcolor": edge, "bgcolor": fill}
    return marker


def _in_template(name: str) -> str:
    # Plotly would substitute %{…} in a name.
    return html_text(name, 80).replace("%{", "%&#123;")
