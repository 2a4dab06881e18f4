"""Spans and events over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.columns.export import download_name
from toolkit.telemetry.runs.formatting import clean, clock, count, duration, md
from toolkit.telemetry.runs.spans import SpanTable, totals
from toolkit.telemetry.timing.names import DEVICE_TIME_PREFIX

from ...charts.packing import Window
from ...charts.spans import Bar, bars_figure
from .. import page_states
from ..chart import draw_chart
from ..control_box import describe, subject
from ..frame import RunPage, live, read
from ..page_states import section
from ..run_table import fact_table
from .spans import (
    SpanChoice,
    choose_spans,
    draw_spans,
    follow_window,
    spans_of,
    window_of,
)

_MAX_EVENTS: Final = 1_000
_MAX_LISTED: Final = 300
_HINTS: Final = {
    "total s": "Total time in these spans, including nested spans.",
    "p50 ms": "Median duration.",
    "p95 ms": "95 % of the spans took less.",
    "GPU s": "Time on the GPU's own clock, where it was measured.",
    "% of run": "Percentage of the run's time. Nested spans count again, so the sum can exceed 100 %.",
}

_SPANS: Final = {records.SPAN, records.SPAN_START, records.SPAN_EVENT, records.SPAN_SUMMARY}
_NOT_EVENTS: Final = frozenset(
    {"step", "with metrics", *_SPANS, records.LEDGER, records.COMPLETION, records.STATE}
)
"""Shown elsewhere; they would fill the list of events."""

_ROWS: Final = {
    records.START: "sessions",
    records.END: "sessions",
    records.EPOCH: "epochs",
    records.CHECKPOINT: "checkpoints",
    records.SAMPLE: "samples",
    records.CONTROL_CHANGE: "requests",
    records.FINDING: "findings",
    records.ERROR: "errors",
    records.LOST: "lost records",
}
_EXAMPLE: Final = """\
with log.span("forward"):
    loss = model(batch)
log.log_step(step, train_loss=loss)
"""


def draw_timeline(page: RunPage) -> None:
    """Draw the spans, what they add up to, and all events."""
    choice = SpanChoice()
    page_states.guarded("The choice of spans", lambda: choose_spans(page, choice))
    # A finished run needs a timer only while its spans are being read.
    live(page, "The timeline", lambda: _timeline(page, choice), idle_s=1.0 if choice.in_part else None)


def _timeline(page: RunPage, choice: SpanChoice) -> None:
    read(page)
    table = spans_of(page, choice.rank, wait_s=1.0)
    if table.fraction_read < 1.0:
        st.progress(table.fraction_read, text=f"Reading spans: {table.fraction_read:.0%}")
    elif choice.in_part:
        # The switches and the timer were made for partly read spans.
        st.rerun()
    kinds = [kind for kind in page.store.count_events(page.key) if kind not in _NOT_EVENTS]
    events = page.store.events(page.key, kinds, limit=_MAX_EVENTS) if kinds else []
    bars = [*_session_bars(page), *(bar for record in events if (bar := _event_bar(record)) is not None)]
    if page.card.logged_by is not None and not bars:
        st.info(f"This {md(page.card.logged_by, 40)} log has no events.")
        return
    if not bars and not len(table) and not table.summaries:
        page_states.no_records(
            "Sessions, checkpoints, samples, epochs, requests and spans appear here as they are logged."
        )
        return
    window = window_of(table)
    if window is not None:
        draw_spans(page, choice, table, window)
    if len(table) or table.summaries:
        _table(page, table)
    _events_chart(page, bars, window)
    if not len(table) and not table.summaries and page.card.logged_by is None:
        _no_spans()
    _events(page, events)


# ---------------------------------------------------------------- totals


def _table(page: RunPage, table: SpanTable) -> None:
    summed = totals(table)
    wall = page.card.duration_s
    if not wall:
        whole = table.whole()
        wall = whole[1] - whole[0] if whole is not None else 0.0
    found = sorted(summed.by_name.items(), key=lambda item: item[1].total, reverse=True)
    facts: dict[str, list[Any]] = {
        "span": [name for name, _ in found],
        "count": [one.count for _, one in found],
        "total s": [one.total for _, one in found],
        "p50 ms": [one.p50 * 1000 for _, one in found],
        "p95 ms": [one.p95 * 1000 for _, one in found],
        "max ms": [one.longest * 1000 for _, one in found],
    }
    if on_device := _on_device(page):
        facts["GPU s"] = [on_device.get(name) for name, _ in found]
    shares = [min(1.0, one.total / wall) if wall else 0.0 for _, one in found]
    facts["% of run"] = [(share, f"{share:.1%}") for share in shares]
    fact_table(facts, "Spans by name", key=f"_spans {page.key}", hints=_HINTS)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.caption(_covered(summed.sessions_summed, summed.sessions_counted))
        st.download_button(
            "Chrome trace (opens in Perfetto)",
            lambda: b"".join(page.store.trace(page.key)),
            download_name(page.card.name, "trace", "json"),
            "application/json",
            on_click="ignore",
        )


def _covered(summed: int, counted: int) -> str:
    parts = [f"all spans of {count(summed)} {'session' if summed == 1 else 'sessions'}"] if summed else []
    parts += [f"only the single ones of {count(counted)} without totals"] if counted else []
    return f"Here are {' and '.join(parts)}; p50 and p95 are averaged over the sessions."


def _on_device(page: RunPage) -> dict[str, float]:
    metrics = [info.name for info in page.store.metrics(page.key) if info.name.startswith(DEVICE_TIME_PREFIX)]
    if not metrics:
        return {}
    columns = page.store.table(page.key, metrics)
    return {
        name.removeprefix(DEVICE_TIME_PREFIX): float(np.nansum(columns[name]))
        for name in metrics
        if name in columns
    }


def _no_spans() -> None:
    with st.container(border=True):
        st.markdown("**This run has logged no spans.**")
        st.caption(
            "A span times a part of the work, such as data loading, the forward pass or a checkpoint. To add one:"
        )
        st.code(_EXAMPLE, language="python")
        st.caption("Spans then appear here with their durations; the Overview shows where the time went.")


# ---------------------------------------------------------------- events


def _events_chart(page: RunPage, bars: Sequence[Bar], window: Window | None) -> None:
    section("Events" + (" :gray[the shaded range is shown above]" if window is not None else ""))
    key = f"chart events {page.key}"
    draw_chart(
        bars_figure(bars, f"events {page.key}", shaded=window),
        key=key,
        label=f"timeline of {len(bars)} events",
        on_view=(lambda: follow_window(key, None)) if window is not None else None,
    )


def _session_bars(page: RunPage) -> list[Bar]:
    manifest = page.store.meta(page.key).manifest
    if manifest is None:
        return []
    last = page.card.last_sign
    bars = []
    for one in manifest.sessions:
        ended = one.ended if one.ended is not None else last
        if ended is not None:
            text = f"session {one.session}: {one.status}" + (
                f", {one.reason}" if one.reason and one.reason != one.status else ""
            )
            bars.append(Bar("sessions", one.started, max(0.001, ended - one.started), text))
    return bars


def _event_bar(record: Record) -> Bar | None:
    event, time_s = record.get("event"), record.get("time")
    if not isinstance(time_s, (int, float)) or event in (records.START, records.END):
        return None
    seconds = record.get("seconds")
    took = float(seconds) if event == records.CHECKPOINT and isinstance(seconds, (int, float)) else 0.0
    step = record.get("global_step")
    where = f" at step {step:,}" if isinstance(step, int) else ""
    return Bar(
        _ROWS.get(str(event), clean(str(event))[:40]),
        float(time_s) - took,
        took,
        f"{_event_text(record)}{where}",
    )


def _event_text(record: Record) -> str:
    event = record.get("event")
    if event == records.CHECKPOINT:
        return "best checkpoint" if record.get("is_best") else "checkpoint"
    if event == records.SAMPLE:
        return f"sample: {record.get('prompt', '')}"[:120]
    if event == records.EPOCH:
        return f"epoch {record.get('epoch')}"
    if event == records.CONTROL_CHANGE:
        return f"{subject(record)}: {record.get('status')}"
    if event in (records.FINDING, records.ERROR):
        return str(record.get("message", event))[:200]
    return clean(str(event))


def _events(page: RunPage, events: Sequence[Record]) -> None:
    counts = page.store.count_events(page.key)
    total = sum(number for name, number in counts.items() if name not in _NOT_EVENTS)
    with st.expander(f"All events ({count(min(len(events), _MAX_LISTED))} of {count(total)})"):
        fact_table(
            [
                {
                    "time": clock(record["time"]) if isinstance(record.get("time"), (int, float)) else "",
                    "event": str(record.get("event")),
                    "step": record.get("global_step") if isinstance(record.get("global_step"), int) else None,
                    "details": _details(record),
                }
                for record in events[:_MAX_LISTED]
            ],
            "Events, newest first",
            key=f"_events {page.key}",
        )


def _details(record: Record) -> str:
    if record.get("event") == records.CONTROL_CHANGE:
        return f"{_event_text(record)} {describe(record)}".replace("\\", "")
    if record.get("event") == records.CHECKPOINT and isinstance(record.get("seconds"), (int, float)):
        return f"{record.get('checkpoint_path', '')} in {duration(record['seconds'])}"
    skipped = {"event", "time", "elapsed", "seq", "session", "global_step", "config"}
    return ", ".join(f"{name}={value}" for name, value in record.items() if name not in skipped)[:400]
