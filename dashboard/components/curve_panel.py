"""A titled chart of metrics of one run; the browser asks for their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.metric_aliases import signal_of
from toolkit.telemetry.runfolder.metrics import INTERNAL, OF_THE_MACHINE
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, Record, is_spread
from toolkit.telemetry.runfolder.untrusted import number_in
from toolkit.telemetry.runs.curve_axes import axes_of
from toolkit.telemetry.runs.findings.health import findings_of
from toolkit.telemetry.runs.formatting import md
from toolkit.telemetry.runs.listing.pins import MAX_PINS, Pins, pins_of, save_hidden, save_pinned
from toolkit.telemetry.runs.store import RunStore

from .. import session
from ..charts.palette import DASHES, SERIES
from . import page_states
from .baseline import baseline_curve, baseline_of
from .control_box import subject
from .curve_chart import (
    Band,
    ChartSpec,
    CurveSpec,
    Level,
    Mark,
    Tone,
    View,
    Window,
    draw_curves,
    view_switches,
)
from .frame import RunPage, has_rest
from .page_states import section

_LOOKED_AT: Final = 5
"""Metrics in which an epoch is looked for, if the list of runs has none."""
SMALL_PX: Final = 200
"""In charts up to this height no forecast is drawn."""
_TONES: Final[dict[str, Tone]] = {"critical": "critical", "info": "muted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a chart shows besides its curves, and where."""

    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    window: Window | None = None
    """A fixed range; such a chart does not zoom with the others."""
    axis: str | None = None
    """A fixed x axis; None for the one of the switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A chart of some metrics of a run, each with its label; without `legend` only the tooltip names them."""

    title: str
    metrics: Sequence[tuple[str, str]]
    unit: str = ""
    from_zero: bool = False
    limits: tuple[tuple[float, str], ...] = ()
    legend: bool = True

    @classmethod
    def of(cls, metric: str) -> Panel:
        """Return the chart of one metric."""
        return cls(title=metric, metrics=((metric, metric),))


def chart_switches(page: RunPage) -> View:
    """Show the switches for all charts of a page, in one row."""
    metrics = page.store.metrics(page.key)
    names = [info.name for info in metrics[:_LOOKED_AT]]
    found: list[bool] = []
    page_states.guarded("The epochs", lambda: found.append(_logs_epochs(page, names)))
    return view_switches(axes=axes_of(metrics, has_epochs=any(found)), forecast=has_rest(page.card))


def _logs_epochs(page: RunPage, names: Sequence[str]) -> bool:
    if page.card.epoch is not None:
        return True
    found = (page.store.series(page.key, name, axis="epoch", buckets=1).segments for name in names)
    return any(np.isfinite(segment.x).any() for segments in found for segment in segments)


def curve_panel(
    page: RunPage,
    panel: Panel,
    around: Around,
    *,
    height: int = 230,
    smooth: bool = True,
    key: str | None = None,
    first_color: int = 0,
    level: Literal[2, 3] = 2,
    star: tuple[bool, Callable[[], None]] | None = None,
) -> None:
    """Draw a panel under its title; nothing if the run has none of its metrics.

    `level` is that of the title as a heading, `star` pins its metric. The first metric comes with its minimum and
    maximum between records.
    """
    card, title = page.card, panel.title
    curves, found = curves_of(page, panel.metrics, first_color, smooth=smooth, has_base=around.axis is None)
    if not found:
        return
    section(md(title) + (f" :gray[{md(panel.unit)}]" if panel.unit else ""), level=level)
    draw_curves(
        ChartSpec(
            title=title,
            curves=tuple(curves),
            height=height,
            unit=panel.unit,
            fit=smooth,
            from_zero=panel.from_zero,
            legend=panel.legend and len(found) > 1,
            limits=panel.limits,
            marks=tuple(mark for mark in around.marks if concerns(mark, found)),
            bands=around.bands,
            levels=around.levels,
            window=around.window,
            axis=around.axis,
            zoom_group=page.key,
            live=card.live,
            heading=f"{title} · {card.name}",
            star=None if star is None else star[0],
            forecast=height > SMALL_PX,
        ),
        key=key or f"chart {page.key} {title} {panel.metrics[0][0]}",
        on_star=None if star is None else star[1],
    )


def curves_of(
    page: RunPage,
    metrics: Sequence[tuple[str, str]],
    first_color: int = 0,
    *,
    smooth: bool = True,
    has_base: bool = True,
) -> tuple[list[CurveSpec], list[str]]:
    """Return the curves of those of `metrics` (name and label) that are logged, and their names; the baseline last."""
    card = page.card
    logged = {info.name for info in page.store.metrics(page.key)}
    found = [(metric, label) for metric, label in metrics if metric in logged or metric.startswith("=")]
    curves = [
        CurveSpec(
            run=page.key,
            metric=metric,
            label=label,
            colour=first_color + number,
            dash=DASHES[(number // SERIES) % len(DASHES)],
            smooth=smooth,
            band=_band(metric, logged) if number == 0 else None,
            name=card.name,
        )
        for number, (metric, label) in enumerate(found)
    ]
    base = baseline_of(page.store, card.project) if has_base and found else None
    if base is not None and base.key != page.key:
        # Nothing is drawn where it has not logged the metric.
        curves.append(baseline_curve(base, found[0][0]))
    return curves, [metric for metric, _ in found]


def _band(metric: str, logged: set[str]) -> tuple[str, str] | None:
    low, high = f"{metric}_min", f"{metric}_max"
    return (low, high) if low in logged and high in logged else None


def marks_of(page: RunPage) -> tuple[Mark, ...]:
    """Return marks for the charts: applied requests, session starts, and findings that are open or critical."""
    marks = [
        Mark(step=start.first_step, time=start.first_time, text=f"session {start.session}")
        for start in page.store.sessions(page.key)[1:]
    ]
    changes = [change_mark(record) for record in page.store.events(page.key, (CONTROL_CHANGE,), limit=200)]
    marks += [mark for mark in changes if mark is not None]
    muted = page.store.meta(page.key).labels.muted
    marks += [
        Mark(
            step=alert.start_step,
            time=alert.time,
            text=title_of(alert),
            tone=_TONES.get(alert.severity, "warning"),
            metric=alert.metric or None,
        )
        for alert in findings_of(page.store, page.key)
        if alert.kind not in muted and (alert.is_open or alert.severity == "critical")
    ]
    return tuple(sorted(marks, key=lambda mark: (mark.step is None, mark.step or 0.0)))


def concerns(mark: Mark, metrics: Sequence[str]) -> bool:
    """Return whether a mark belongs in a chart of these metrics."""
    if mark.metric is None:
        return True
    signal = signal_of(mark.metric)
    return any(name == mark.metric or (signal is not None and signal_of(name) == signal) for name in metrics)


def change_mark(record: Record) -> Mark | None:
    """Return the mark of a request that the run applied; None if it did not."""
    if record.get("status") not in ("applied", "clamped"):
        return None
    setting = record.get("setting")
    text = subject(record) if setting is None else f"{setting} → {record.get('new')}"
    return Mark(
        step=number_in(record.get("global_step")), time=number_in(record.get("time")), text=text, tone="info"
    )


# ---------------------------------------------------------------- pinned metrics


def pin_box(page: RunPage, label: str = "Pins", also: Callable[[], None] | None = None) -> Pins:
    """Show which metrics are pinned and hidden, let a user change that, and return it; `also` comes first."""
    pins = pins_of(page.store, page.key)
    can_pin = session.read_only_reason() is None
    if not can_pin and also is None:
        return pins
    with st.popover(label):
        if also is not None:
            also()
        if not can_pin:
            return pins
        logged = [info.name for info in page.store.metrics(page.key)]
        names = [name for name in logged if not name.startswith(INTERNAL) and not is_spread(name, logged)]
        names.sort(key=lambda name: name.startswith(OF_THE_MACHINE))
        _pick(page, "Pinned metrics", pins.pinned, names, save_pinned, max_selections=MAX_PINS)
        _pick(page, "Hidden metrics", pins.hidden, names, save_hidden)
    return pins_of(page.store, page.key)


def pin_star(page: RunPage, metric: str, pins: Pins) -> tuple[bool, Callable[[], None]] | None:
    """Return whether `metric` is pinned and what a click on its star does; None if nothing can be changed."""
    if session.read_only_reason() is not None:
        return None
    is_pinned = metric in pins.pinned

    def toggle() -> None:
        others = [name for name in pins_of(page.store, page.key).pinned if name != metric]
        _save(page, save_pinned, others if is_pinned else [*others, metric])

    return is_pinned, toggle


def _pick(
    page: RunPage,
    label: str,
    chosen: Sequence[str],
    names: Sequence[str],
    save: Callable[[RunStore, str, Sequence[str]], None],
    **more: Any,
) -> None:
    key = f"_{label} {page.key}"
    # A star, or another tab, may have changed them since.
    if list(st.session_state.get(key, ())) != list(chosen):
        st.session_state[key] = list(chosen)
    st.multiselect(
        label,
        [*chosen, *(name for name in names if name not in chosen)],
        key=key,
        help="For all runs of the project.",
        on_change=lambda: _save(page, save, st.session_state[key]),
        **more,
    )


def _save(page: RunPage, save: Callable[[RunStore, str, Sequence[str]], None], names: Sequence[str]) -> None:
    page_states.is_done(lambda: save(page.store, page.key, names))
