"""A titled chart of some metrics of one run, as every page draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import streamlit as st

from dashboard import session
from dashboard.charts.curves import Band, Curve, Level, Look, Mark, chart_label, curve_figure
from dashboard.charts.packing import Window, window_from_chart
from dashboard.charts.palette import DASHES, SERIES
from dashboard.components.chart import draw_chart, view_of
from dashboard.components.frame import RunPage
from dashboard.data.alerts import Alert, findings_of
from dashboard.data.remedies import turned
from dashboard.data.run_store import Series, XAxis
from dashboard.data.formatting import count, md
from toolkit.runfolder.records import CONTROL_CHANGE, Record

_BUCKETS_AROUND = 120


@dataclass(slots=True)
class Tally:
    """How many points a page has drawn, of how many there are in view."""

    drawn: int = 0
    total: int = 0

    def add(self, series: Series) -> None:
        """Count one curve."""
        self.drawn += series.drawn
        self.total += series.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the switches above the charts say."""

    axis: XAxis = "step"
    smoothing: float = 0.0
    log_y: bool = False
    clip: bool = False
    marks: tuple[Mark, ...] = field(default_factory=tuple)
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    fixed_window: Window | None = None
    """A part of the axis to look at whatever the URL says."""

    @property
    def window(self) -> Window | None:
        """The part of the axis to look at; asked anew each time, because charts change it."""
        return self.fixed_window or session.window()


def chart_switches() -> Options:
    """Show the switches that all charts of a page obey."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        axis = session.axis_picker()
        log_y = session.toggle("Log y", "log", "Draw the values on a logarithmic axis.")
        clip = session.toggle(
            "Clip outliers",
            "clip",
            "Frame the middle 98 % of the points; what lies beyond is marked at the edge, with its value on hover.",
        )
        with st.container(width=230):
            smoothing = session.smoothing_picker()
        # Always there: a drag in a chart does not draw this row again.
        st.button("Whole run", icon=":material/zoom_out_map:", on_click=session.set_window, args=(None,))
    return Options(axis=axis, smoothing=smoothing, log_y=log_y, clip=clip)


def curve_panel(
    page: RunPage,
    title: str,
    metrics: Sequence[tuple[str, str]],
    options: Options,
    tally: Tally,
    *,
    height: int = 230,
    unit: str = "",
    buckets: int = 250,
    smooth: bool = False,
    digits: str = ".4~g",
    from_zero: bool = False,
    limits: tuple[tuple[float, str], ...] = (),
    key: str | None = None,
    first_color: int = 0,
) -> bool:
    """Draw `metrics` (name and label) in one chart under `title`; False where the run has none of them."""
    window = options.window
    curves = []
    for number, (metric, label) in enumerate(metrics):
        # A validation loss comes rarely, and each one counts: only the first curve is averaged.
        smoothing = options.smoothing if smooth and number == 0 else 0.0
        series = page.store.series(
            page.key, metric, axis=options.axis, window=window, buckets=buckets, smoothing=smoothing
        )
        around = None
        if window is not None:
            around = page.store.series(
                page.key, metric, axis=options.axis, buckets=_BUCKETS_AROUND, smoothing=smoothing
            )
        if series.empty and (around is None or around.empty):
            continue
        tally.add(series)
        edges = None
        if number == 0:
            low, high = (
                page.store.series(
                    page.key, f"{metric}_{end}", axis=options.axis, window=window, buckets=buckets // 2
                )
                for end in ("min", "max")
            )
            if not low.empty and not high.empty:
                edges = (low, high)
        curves.append(
            Curve(
                series=series,
                around=around,
                label=label,
                number=first_color + number,
                dash=DASHES[(number // SERIES) % len(DASHES)],
                band=edges,
                digits=digits,
            )
        )
    if not curves:
        return False
    name = key or f"chart {page.key} {title} {metrics[0][0]}"
    if options.axis == "epoch" and not any(_has_place(curve.series) for curve in curves):
        st.markdown(f"**{md(title)}**")
        st.caption("This run has logged no epochs.")
        return True
    look = Look(
        axis=options.axis,
        window=window,
        log_y=options.log_y,
        clip=options.clip,
        from_zero=from_zero,
        unit=unit,
        legend=len(curves) > 1,
        axis_title=height >= 220,
        mark_labels=height >= 220,
        limits=limits,
        revision=f"{page.key} {options.axis}",
        marks=options.marks,
        bands=options.bands,
        levels=options.levels,
    )
    st.markdown(
        f"**{md(title)}**"
        + (f" :gray[{md(unit)}]" if unit else "")
        + not_drawn_as_points(curves, log_y=options.log_y)
    )
    draw_chart(
        curve_figure(curves, look),
        key=name,
        label=chart_label(title, curves[0].series),
        height=height,
        name=f"{page.card.name} {title}",
        # A chart with a window of its own follows nobody, and nobody follows it.
        group=page.key if options.fixed_window is None else name,
        on_view=(lambda: follow_zoom(name, options.axis)) if options.fixed_window is None else None,
    )
    return True


def not_drawn_as_points(curves: Sequence[Curve], *, log_y: bool) -> str:
    """Return, for a chart's title, how many values are NaN or infinite or have no place on a log axis."""
    return _not_finite(curves) + (_not_on_log_axis(curves) if log_y else "")


def _not_finite(curves: Sequence[Curve]) -> str:
    kinds: dict[str, int] = {}
    for curve in curves:
        for run in curve.series.non_finite:
            kinds[run.kind] = kinds.get(run.kind, 0) + run.count
    if not kinds:
        return ""
    return " :red[" + ", ".join(f"{count(number)} {md(kind)}" for kind, number in kinds.items()) + "]"


def _not_on_log_axis(curves: Sequence[Curve]) -> str:
    hidden = sum(int((piece.y <= 0).sum()) for curve in curves for piece in curve.series.pieces)
    return f" :orange[{count(hidden)} at or below zero, which a log axis does not have]" if hidden else ""


def _has_place(series: Series) -> bool:
    return any(np.isfinite(piece.x).any() for piece in series.pieces)


def follow_zoom(key: str, axis: XAxis) -> None:
    """Look, in every chart of the page, at the part of the axis that the chart with this key was zoomed to."""
    view = view_of(key)
    session.set_window(None if view is None else window_from_chart(view, axis))


def marks_of(page: RunPage, axis: XAxis) -> tuple[Mark, ...]:
    """Return what happened to the run, as marks on a chart: changes asked for, sessions, findings."""
    if axis not in ("step", "time"):
        # What happened to a run is recorded with its step and its time.
        return ()
    marks = [
        Mark(x=span.first_step if axis == "step" else span.first_time, text=f"session {span.session}")
        for span in page.store.sessions(page.key)[1:]
    ]
    for record in page.store.events(page.key, (CONTROL_CHANGE,), limit=200):
        x = _place(record, axis)
        mark = change_mark(record, x) if x is not None else None
        if mark is not None:
            marks.append(mark)
    muted = page.store.meta(page.key).labels.muted
    for alert in findings_of(page.store, page.key):
        at = alert.step if axis == "step" else alert.time
        if at is not None and alert.kind not in muted:
            marks.append(_finding_mark(alert, float(at)))
    return tuple(sorted(marks, key=lambda mark: mark.x))


def change_mark(record: Record, x: float) -> Mark | None:
    """Return the mark of a request that the run carried out; None where it did not."""
    if record.get("status") not in ("applied", "clamped"):
        return None
    if record.get("setting") is not None:
        return Mark(x=x, text=f"{record['setting']} → {record.get('new')}", tone="info")
    knobs = turned(record)
    asked = record.get("actions")
    names = ", ".join(str(name) for name in asked) if isinstance(asked, (list, tuple)) else ""
    return Mark(x=x, text=knobs or names or "change", tone="info")


def _finding_mark(alert: Alert, x: float) -> Mark:
    tone = {"critical": "critical", "info": "muted"}.get(alert.severity, "warning")
    return Mark(x=x, text=alert.title, tone=tone)


def _place(record: Record, axis: XAxis) -> float | None:
    value = record.get("time") if axis == "time" else record.get("global_step")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
