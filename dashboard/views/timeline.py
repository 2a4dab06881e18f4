"""Timeline page: what happened when, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import pandas as pd
import streamlit as st

from dashboard.charts.spans import Bar, bars_figure
from dashboard.components import faces
from dashboard.components.chart import draw_chart
from dashboard.components.control_box import describe, subject
from dashboard.components.frame import RunPage, live, open_run, read
from dashboard.data.export import download_name
from dashboard.data.words import clean, clock, count, duration
from toolkit.runfolder.records import (
    CHECKPOINT,
    CONTROL_CHANGE,
    END,
    EPOCH,
    ERROR,
    FINDING,
    LOST,
    SAMPLE,
    SPAN,
    START,
    Record,
)

_MOST_BARS: Final = 2_000
_MOST_EVENTS: Final = 1_000
_ROWS: Final = {
    START: "sessions",
    END: "sessions",
    EPOCH: "epochs",
    CHECKPOINT: "checkpoints",
    SAMPLE: "samples",
    CONTROL_CHANGE: "requests",
    FINDING: "findings",
    ERROR: "errors",
    LOST: "losses",
}


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    live(page, "The timeline", lambda: _timeline(page))


def _timeline(page: RunPage) -> None:
    read(page)
    events = [
        record
        for record in page.store.events(page.key, None, limit=_MOST_EVENTS)
        if record.get("event") != SPAN
    ]
    spans = page.store.events(page.key, (SPAN,), limit=20_000)
    bars = [*_session_bars(page), *(bar for record in events if (bar := _event_bar(record)) is not None)]
    if not bars and not spans:
        faces.no_records(
            "Sessions, checkpoints, samples, epochs, requests and spans appear here as they are logged."
        )
        return
    st.markdown("**What happened**")
    rows = len({bar.row for bar in bars})
    draw_chart(
        bars_figure(bars, f"events {page.key}"),
        key=f"chart events {page.key}",
        label=f"timeline of {len(bars)} events",
        height=70 + 38 * rows,
        group="timeline",
    )
    _spans(page, spans)
    _events(page, events)


def _session_bars(page: RunPage) -> list[Bar]:
    manifest = page.store.meta(page.key).manifest
    if manifest is None:
        return []
    last = page.card.last_sign
    bars = []
    for session in manifest.sessions:
        ended = session.ended if session.ended is not None else last
        if ended is not None:
            text = f"session {session.session}: {session.status}" + (
                f", {session.reason}" if session.reason and session.reason != session.status else ""
            )
            bars.append(Bar("sessions", session.started, max(0.001, ended - session.started), text))
    return bars


def _event_bar(record: Record) -> Bar | None:
    event, moment = record.get("event"), record.get("time")
    if not isinstance(moment, (int, float)) or event in (START, END):
        return None
    seconds = record.get("seconds")
    took = float(seconds) if event == CHECKPOINT and isinstance(seconds, (int, float)) else 0.0
    step = record.get("global_step")
    where = f" at step {step:,}" if isinstance(step, int) else ""
    return Bar(
        _ROWS.get(str(event), clean(str(event))[:40]), float(moment) - took, took, f"{_words(record)}{where}"
    )


def _words(record: Record) -> str:
    event = record.get("event")
    if event == CHECKPOINT:
        return "best checkpoint" if record.get("is_best") else "checkpoint"
    if event == SAMPLE:
        return f"sample: {record.get('prompt', '')}"[:120]
    if event == EPOCH:
        return f"epoch {record.get('epoch')}"
    if event == CONTROL_CHANGE:
        return f"{subject(record)}: {record.get('status')}"
    if event in (FINDING, ERROR):
        return str(record.get("message", event))[:200]
    return clean(str(event))


# ---------------------------------------------------------------- spans


def _spans(page: RunPage, spans: Sequence[Record]) -> None:
    st.markdown("**Spans**")
    if not spans:
        st.caption(
            "This run has logged no spans. Parts of the work that are timed, such as data loading, appear here."
        )
        return
    timed: list[tuple[str, float, float]] = []
    for record in spans:
        start, took = record.get("start", record.get("time")), record.get("duration", record.get("seconds"))
        if isinstance(start, (int, float)) and isinstance(took, (int, float)):
            timed.append((clean(str(record.get("name", "span"))), float(start), float(took)))
    timed.sort(key=lambda span: span[2], reverse=True)
    drawn = [Bar(name, start, took, name) for name, start, took in timed[:_MOST_BARS]]
    names = len({bar.row for bar in drawn})
    draw_chart(
        bars_figure(drawn, f"spans {page.key}"),
        key=f"chart spans {page.key}",
        label=f"{len(drawn)} spans",
        height=70 + 38 * min(names, 30),
        group="timeline",
    )
    if len(timed) > _MOST_BARS:
        st.caption(f"showing the {count(_MOST_BARS)} longest of {count(len(timed))} spans")
    frame = pd.DataFrame(timed, columns=["span", "start", "seconds"])
    grouped = frame.groupby("span")["seconds"]
    table = pd.DataFrame(
        {
            "count": grouped.count(),
            "total s": grouped.sum(),
            "median s": grouped.median(),
            "95 % s": grouped.quantile(0.95),
            "longest s": grouped.max(),
            "share": grouped.sum() / max(1e-12, float(frame["seconds"].sum())),
        }
    ).sort_values("total s", ascending=False)
    st.dataframe(
        table,
        column_config={"share": st.column_config.ProgressColumn(min_value=0, max_value=1, format="percent")},
        alt="Spans by name",
    )
    st.download_button(
        "Chrome trace (opens in Perfetto)",
        lambda: _chrome_trace(timed),
        download_name(page.card.name, "trace", "json"),
        "application/json",
        on_click="ignore",
    )


def _chrome_trace(timed: Sequence[tuple[str, float, float]]) -> bytes:
    events: list[dict[str, Any]] = [
        {"name": name, "ph": "X", "ts": start * 1e6, "dur": took * 1e6, "pid": 1, "tid": 1}
        for name, start, took in timed
    ]
    return orjson.dumps({"traceEvents": events})


def _events(page: RunPage, events: Sequence[Record]) -> None:
    counts = page.store.count_events(page.key)
    total = sum(number for name, number in counts.items() if name not in ("step", "with metrics", SPAN))
    with st.expander(f"Every event ({count(len(events))} of {count(total)})"):
        frame = pd.DataFrame(
            [
                {
                    "time": clock(record["time"]) if isinstance(record.get("time"), (int, float)) else "",
                    "event": clean(str(record.get("event"))),
                    "step": record.get("global_step") if isinstance(record.get("global_step"), int) else None,
                    "what": clean(_details(record)),
                }
                for record in events
            ]
        )
        if len(frame):
            frame["step"] = frame["step"].astype("Float64").where(frame["step"].notna(), np.nan)
            st.dataframe(frame, hide_index=True, height=320, alt="Events, newest first")


def _details(record: Record) -> str:
    if record.get("event") == CONTROL_CHANGE:
        return f"{_words(record)} {describe(record)}".replace("\\", "")
    if record.get("event") == CHECKPOINT and isinstance(record.get("seconds"), (int, float)):
        return f"{record.get('checkpoint_path', '')} in {duration(record['seconds'])}"
    skipped = {"event", "time", "elapsed", "seq", "session", "global_step", "config"}
    return ", ".join(f"{name}={value}" for name, value in record.items() if name not in skipped)[:400]


main()
