"""Findings of a run over its steps, a row for each kind."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.runs.formatting import html_text

from .packing import FRAME
from .palette import LIGHT, color


def incidents_figure(alerts: Sequence[Finding], last_step: int) -> go.Figure:
    """Return a bar from the first to the last step of each, to `last_step` for one that is open; all have a step."""
    starts = [alert.start_step or 0 for alert in alerts]
    ends = [
        max(start, last_step if alert.end_step is None else alert.end_step)
        for start, alert in zip(starts, alerts, strict=True)
    ]
    room = 0.008 * max(last_step, *ends, 1)
    colours = [color(alert.severity if alert.severity in LIGHT else "muted") for alert in alerts]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            base=starts,
            # Wide enough to be clicked.
            x=[max(end - start, room) for start, end in zip(starts, ends, strict=True)],
            y=[html_text(title_of(alert), 30) for alert in alerts],
            text=[html_text(alert.message, 160) for alert in alerts],
            customdata=[[number] for number in range(len(alerts))],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
            # The outline keeps one of a single step visible.
            marker={"color": colours, "line": {"width": 3, "color": colours}},
        )
    )
    return figure.update_layout(
        xaxis={"title": {"text": "step"}, "range": [0, max(last_step, *ends, 1) * 1.02], "tickformat": ",d"},
        yaxis={"autorange": "reversed", "fixedrange": True},
        barmode="overlay",
        bargap=0.4,
        **FRAME,
        uirevision="incidents",
        height=62 + 28 * len({title_of(alert) for alert in alerts}),
    )
