"""A titled chart of metrics of one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import streamlit as st

from dashboard import session
from dashboard.charts.curve_layout import Band, ChartMark, ChartStyle, Curve, Level
from dashboard.charts.curves import chart_label, curve_figure
from dashboard.charts.packing import Window, window_from_chart
from dashboard.charts.palette import DASHES, SERIES
from dashboard.components import page_states
from dashboard.components.chart import draw_chart, view_of
from dashboard.components.frame import RunPage
from dashboard.components.page_states import section
from toolkit.diagnostics.metric_aliases import signal_of
from toolkit.runfolder.labels import LabelsError
from toolkit.runfolder.metrics import INTERNAL
from toolkit.runfolder.records import CONTROL_CHANGE, Record, is_spread
from toolkit.runfolder.untrusted import number_in
from toolkit.runs.columns.export import CurvePoints, curves_to_csv
from toolkit.runs.findings.alerts import Alert, findings_of
from toolkit.runs.findings.remedies import knob_changes_text
from toolkit.runs.formatting import count, md
from toolkit.runs.listing.pins import MAX_PINS, Pins, moved, pins_of, save_hidden, save_pinned
from toolkit.runs.store import Refused, RunStore, Series, Smoothing, XAxis

_BUCKETS_AROUND = 120
_LOOKED_AT = 5
"""Metrics in which an epoch is looked for, if the list of runs has none."""


@dataclass(slots=True)
class Tally:
    """How many points a page has drawn, and how many are in view."""

    drawn: int = 0
    total: int = 0
    timed: bool = False
    """Whether a chart has been sent with its wall times: the others of the page look them up there."""

    def add(self, series: Series) -> None:
        """Count one curve."""
        self.drawn += series.drawn
        self.total += series.total


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartOptions:
    """The values of the switches above the charts."""

    axis: XAxis = "step"
    smoothing: Smoothing = 0.0
    log_y: bool = False
    clip: bool = False
    with_marks: bool = True
    marks: tuple[ChartMark, ...] = field(default_factory=tuple)
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    fixed_window: Window | None = None
    """An x-axis range that overrides the one in the URL."""

    @property
    def window(self) -> Window | None:
        """The x-axis range; read each time, because charts change it."""
        return self.fixed_window or session.window()


def chart_switches(page: RunPage) -> ChartOptions:
    """Show the switches for all charts of a page, one beside the other."""
    found: list[bool] = []
    page_states.guarded("The epochs", lambda: found.append(_logs_epochs(page)))
    axis = session.axis_picker(has_epochs=any(found))
    smoothing = session.smoothing_picker()
    log_y = session.toggle("Log y", "log", "Draw the values on a logarithmic axis.")
    clip = session.toggle(
        "Clip",
        "clip",
        "Zoom to the middle 98 % of the points. Values outside are marked at the edge; hover to see them.",
    )
    marks = session.toggle("Marks", "marks", "Show sessions, applied requests and findings in the charts.")
    # Always shown: a zoom in a chart does not redraw this row.
    st.button("Whole run", icon=":material/zoom_out_map:", on_click=session.set_window, args=(None,))
    return ChartOptions(axis=axis, smoothing=smoothing, log_y=log_y, clip=clip, with_marks=marks)


def curve_panel(
    page: RunPage,
    title: str,
    metrics: Sequence[tuple[str, str]],
    options: ChartOptions,
    tally: Tally,
    *,
    height: int = 230,
    unit: str = "",
    buckets: int = 250,
    smooth: bool = False,
    digits: str = ".4~g",
    from_zero: bool = False,
    legend: bool = True,
    limits: tuple[tuple[float, str], ...] = (),
    key: str | None = None,
    first_color: int = 0,
    overlay: str | None = None,
    level: Literal[2, 3] = 2,
    star: tuple[bool, Callable[[], None]] | None = None,
) -> bool:
    """Draw `metrics` (name and label) in one chart under `title`; False if the run has none of them.

    Without `legend` only the tooltip names the curves. `overlay` is a further metric, on a y axis of its own; `level`
    is that of the title as a heading, `star` pins its metric.
    """
    window = options.window
    curves = _curves(
        page, metrics, options, tally, buckets, smooth=smooth, first_color=first_color, digits=digits
    )
    if not curves:
        return False
    over = None
    if overlay is not None and overlay not in [metric for metric, _ in metrics]:
        found = page.store.series(
            page.key, overlay, axis=options.axis, window=window, buckets=buckets, smoothing=options.smoothing
        )
        over = None if found.empty else Curve(series=found, label=overlay, number=first_color + len(curves))
    name = key or f"chart {page.key} {title} {metrics[0][0]}"
    if options.axis == "epoch" and not any(_has_epochs(curve.series) for curve in curves):
        section(md(title), level=level)
        st.caption("This run has logged no epochs.")
        return True
    style = ChartStyle(
        axis=options.axis,
        window=window,
        log_y=options.log_y,
        clip=options.clip,
        fit=smooth,
        from_zero=from_zero,
        unit=unit,
        legend=legend and (len(curves) > 1 or over is not None),
        times=not tally.timed,
        overlay=over,
        axis_title=height >= 220,
        mark_labels=height >= 220,
        limits=limits,
        revision=f"{page.key} {options.axis}",
        marks=tuple(mark for mark in options.marks if _concerns(mark, metrics)),
        bands=options.bands,
        levels=options.levels,
    )
    section(
        md(title) + (f" :gray[{md(unit)}]" if unit else "") + hidden_values_text(curves, log_y=options.log_y),
        level=level,
    )
    tally.timed = True
    draw_chart(
        curve_figure(curves, style),
        key=name,
        label=chart_label(title, curves[0].series),
        height=height,
        name=f"{page.card.name} {title}",
        heading=f"{title} · {page.card.name}",
        y_title=unit or title,
        # A chart with a fixed range does not zoom together with others.
        group=page.key if options.fixed_window is None else name,
        on_view=(lambda: follow_zoom(name, options.axis)) if options.fixed_window is None else None,
        star=star,
        csv=lambda: curves_csv(
            page.store, {page.key: page.card.name}, _drawn(curves, over), options.axis, window
        ),
    )
    return True


def _curves(
    page: RunPage,
    metrics: Sequence[tuple[str, str]],
    options: ChartOptions,
    tally: Tally,
    buckets: int,
    *,
    smooth: bool,
    first_color: int,
    digits: str,
) -> list[Curve]:
    """Return a curve of each metric that the run has; the first one with its minimum and maximum between records."""
    window = options.window
    smoothing = options.smoothing if smooth else 0.0
    curves = []
    for number, (metric, label) in enumerate(metrics):
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
    return curves


def _drawn(curves: Sequence[Curve], overlay: Curve | None) -> list[str]:
    """Return the names of all metrics in a chart."""
    shown = [*curves, *([overlay] if overlay is not None else [])]
    return [series.metric for curve in shown for series in (curve.series, *(curve.band or ()))]


def curves_csv(
    store: RunStore, runs: Mapping[str, str], metrics: Sequence[str], axis: XAxis, window: Window | None
) -> bytes:
    """Return every logged point of these metrics in the window, as a CSV file; `runs` are keys and names."""
    return curves_to_csv(
        [
            CurvePoints(run=runs[key], series=series)
            for metric in dict.fromkeys(metrics)
            for key, series in store.series_of(
                list(runs), metric, axis=axis, window=window, buckets=2**40
            ).items()
        ],
        axis,
        window,
    )


def hidden_values_text(curves: Sequence[Curve], *, log_y: bool) -> str:
    """Return, for a chart's title, how many values are NaN or infinite or cannot be on a log axis."""
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
    hidden = sum(int((segment.y <= 0).sum()) for curve in curves for segment in curve.series.segments)
    return (
        f" :orange[{count(hidden)} {'value' if hidden == 1 else 'values'} ≤ 0 {'is' if hidden == 1 else 'are'}"
        " not shown on a log axis]"
        if hidden
        else ""
    )


def _logs_epochs(page: RunPage) -> bool:
    if page.card.epoch is not None:
        return True
    names = [info.name for info in page.store.metrics(page.key)][:_LOOKED_AT]
    return any(_has_epochs(page.store.series(page.key, name, axis="epoch", buckets=1)) for name in names)


def _has_epochs(series: Series) -> bool:
    return any(np.isfinite(segment.x).any() for segment in series.segments)


def follow_zoom(key: str, axis: XAxis) -> None:
    """Zoom every chart of the page to the range of the chart with this key."""
    view = view_of(key)
    session.set_window(None if view is None else window_from_chart(view, axis))


def marks_of(page: RunPage, axis: XAxis) -> tuple[ChartMark, ...]:
    """Return marks for the charts: applied requests, session starts, and findings that are open or critical."""
    if axis not in ("step", "time"):
        # Events are recorded with step and time only.
        return ()
    marks = [
        ChartMark(x=start.first_step if axis == "step" else start.first_time, text=f"session {start.session}")
        for start in page.store.sessions(page.key)[1:]
    ]
    for record in page.store.events(page.key, (CONTROL_CHANGE,), limit=200):
        x = _position(record, axis)
        mark = change_mark(record, x) if x is not None else None
        if mark is not None:
            marks.append(mark)
    muted = page.store.meta(page.key).labels.muted
    for alert in findings_of(page.store, page.key):
        at = alert.step if axis == "step" else alert.time
        if at is not None and alert.kind not in muted and (alert.is_open or alert.severity == "critical"):
            marks.append(_finding_mark(alert, float(at)))
    return tuple(sorted(marks, key=lambda mark: mark.x))


def _concerns(mark: ChartMark, metrics: Sequence[tuple[str, str]]) -> bool:
    """Return whether a mark belongs in a chart of these metrics."""
    if mark.metric is None:
        return True
    signal = signal_of(mark.metric)
    return any(
        name == mark.metric or (signal is not None and signal_of(name) == signal) for name, _ in metrics
    )


def change_mark(record: Record, x: float) -> ChartMark | None:
    """Return the mark of a request that the run applied; None if it did not."""
    if record.get("status") not in ("applied", "clamped"):
        return None
    if record.get("setting") is not None:
        return ChartMark(x=x, text=f"{record['setting']} → {record.get('new')}", tone="info")
    knobs = knob_changes_text(record)
    asked = record.get("actions")
    names = ", ".join(str(name) for name in asked) if isinstance(asked, (list, tuple)) else ""
    return ChartMark(x=x, text=knobs or names or "change", tone="info")


def _finding_mark(alert: Alert, x: float) -> ChartMark:
    tone = {"critical": "critical", "info": "muted"}.get(alert.severity, "warning")
    return ChartMark(x=x, text=alert.title, tone=tone, metric=alert.metric or None)


def _position(record: Record, axis: XAxis) -> float | None:
    value = record.get("time") if axis == "time" else record.get("global_step")
    return number_in(value)


# ---------------------------------------------------------------- pinned metrics


_CHANGED, _PROBLEM = "_pins_changed", "_pins_problem"


def can_pin() -> bool:
    """Return whether this visitor may change pins."""
    return session.read_only_reason() is None


def pin_box(page: RunPage) -> Pins:
    """Show which metrics are pinned and hidden, let a user change that, and return it."""
    problem = st.session_state.pop(_PROBLEM, None)
    if problem:
        st.error(md(problem))
    pins = pins_of(page.store, page.key)
    if not can_pin():
        return pins
    with st.popover(
        "Pins", icon=":material/star:", help="Metrics to show first, in this order, and metrics to hide."
    ):
        logged = [info.name for info in page.store.metrics(page.key)]
        names = [name for name in logged if not name.startswith(INTERNAL) and not is_spread(name, logged)]
        _choose(page, pins, names)
        _order(page, pins)
        _hide(page, pins, names)
    return pins_of(page.store, page.key)


def pin_star(page: RunPage, metric: str, pins: Pins) -> tuple[bool, Callable[[], None]] | None:
    """Return whether `metric` is pinned and what a click on its star does; None if nothing can be changed."""
    if not can_pin():
        return None
    is_pinned = metric in pins.pinned

    def toggle() -> None:
        now = pins_of(page.store, page.key)
        others = [name for name in now.pinned if name != metric]
        _save(page, others if is_pinned else [*others, metric], only_this_run=now.only_this_run)

    return is_pinned, toggle


def redraw_after_pinning() -> None:
    """Draw the whole page again if a star was clicked: the chart moves to another part of it."""
    if st.session_state.pop(_CHANGED, False):
        st.rerun()


def _choose(page: RunPage, pins: Pins, names: Sequence[str]) -> None:
    key = f"_pins {page.key}"
    # A star, or another tab, may have changed them since.
    if list(st.session_state.get(key, ())) != list(pins.pinned):
        st.session_state[key] = list(pins.pinned)
    st.multiselect(
        "Pinned metrics",
        [*pins.pinned, *(name for name in names if name not in pins.pinned)],
        key=key,
        max_selections=MAX_PINS,
        placeholder="Choose metrics",
        on_change=lambda: _save(page, st.session_state[key], only_this_run=pins.only_this_run),
    )
    only = f"_pins_only {page.key}"
    st.session_state[only] = pins.only_this_run
    st.toggle(
        "Only for this run",
        key=only,
        help="Otherwise for all runs of the project.",
        on_change=lambda: _save(page, _kept(page, only), only_this_run=st.session_state[only]),
    )


def _kept(page: RunPage, only: str) -> Sequence[str]:
    """Return the pins after the switch: a run of its own starts with those of the project, and returns to them."""
    if st.session_state[only]:
        return pins_of(page.store, page.key).pinned
    return page.store.project_settings(page.card.project).pinned_metrics


def _order(page: RunPage, pins: Pins) -> None:
    if len(pins.pinned) < 2:
        return
    for place, name in enumerate(pins.pinned):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(md(name, 40), width="stretch")
            for by, word, icon in ((-1, "up", "arrow_upward"), (1, "down", "arrow_downward")):
                st.button(
                    word.capitalize(),
                    icon=f":material/{icon}:",
                    help=f"Move {md(name, 40)} {word}",
                    key=f"_pin_{word} {page.key} {name}",
                    type="tertiary",
                    disabled=not 0 <= place + by < len(pins.pinned),
                    on_click=_save,
                    args=(page, moved(pins.pinned, name, by)),
                    kwargs={"only_this_run": pins.only_this_run},
                )


def _hide(page: RunPage, pins: Pins, names: Sequence[str]) -> None:
    key = f"_hidden {page.key}"
    if list(st.session_state.get(key, ())) != list(pins.hidden):
        st.session_state[key] = list(pins.hidden)

    def hide() -> None:
        _try(lambda: save_hidden(page.store, page.key, st.session_state[key]))

    st.multiselect(
        "Hidden metrics",
        [*pins.hidden, *(name for name in names if name not in pins.hidden)],
        key=key,
        placeholder="None",
        on_change=hide,
    )


def _save(page: RunPage, names: Sequence[str], *, only_this_run: bool) -> None:
    _try(lambda: save_pinned(page.store, page.key, names, only_this_run=only_this_run))


def _try(change: Callable[[], None]) -> None:
    try:
        change()
    except (Refused, LabelsError) as error:
        st.session_state[_PROBLEM] = str(error)
    st.session_state[_CHANGED] = True
