"""The latest events of a run: one line for equal events, however often they occurred."""

from __future__ import annotations

import time
from typing import Any, Final

import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import title_of_kind
from toolkit.telemetry.runfolder import records
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.formatting import ago, md

from .control_box import describe, subject
from .frame import RunPage
from .page_states import section

_SPANS: Final = {records.SPAN, records.SPAN_START, records.SPAN_EVENT, records.SPAN_SUMMARY}
_FREQUENT: Final = frozenset({*_SPANS, records.LEDGER, records.STATE, records.CODE, "environment"})
"""Frequent records, which only Time and machine shows, and what goes with a start or a checkpoint."""

_MAX_READ: Final = 200
_MAX_SHOWN: Final = 7


def event_list(page: RunPage) -> None:
    """Show the latest events, the newest first."""
    section("Latest events")
    kinds = [kind for kind in page.store.count_events(page.key) if kind not in _FREQUENT]
    shown = event_lines(page.store.events(page.key, kinds, limit=_MAX_READ), time.time())
    if not shown:
        st.caption("Checkpoints, samples, epochs and control requests appear here.")
    st.markdown("  \n".join(shown))


def event_lines(newest_first: Any, now: float) -> list[str]:
    """Return one line of Markdown for each kind of event, with the newest of its kind and how many there were."""
    seen: set[str] = set()
    newest: dict[str, Record] = {}
    times: dict[str, int] = {}
    for number, record in enumerate(newest_first):
        identity = _identity(record) or str(number)
        if identity in seen:
            # Another record of the same event.
            continue
        seen.add(identity)
        kind = _kind(record) or identity
        newest.setdefault(kind, record)
        times[kind] = times.get(kind, 0) + 1
    return [_line(record, times[kind], now) for kind, record in list(newest.items())[:_MAX_SHOWN]]


def _identity(record: Record) -> str:
    """Return an id shared by records that are one event to a reader; only the newest of them counts."""
    event = record.get("event")
    if event == records.SAMPLE:
        return f"sample {record.get('global_step')}"
    if event == records.START:
        # One when the process starts, one when the model is loaded.
        return f"start {record.get('session', 1)}"
    if event in (records.FINDING, records.ERROR) and record.get("id"):
        return f"{event} {record['id']}"
    return ""


def _kind(record: Record) -> str:
    """Return what is shown as one line; empty for an event that always has its own."""
    event = record.get("event")
    if event in (records.START, records.END, records.ERROR, records.CONTROL_CHANGE, records.LOST):
        return ""
    if event == records.FINDING:
        return f"finding {_title(record)} {record.get('state')}"
    return str(event)


def _line(record: Record, times: int, now: float) -> str:
    event = record.get("event")
    step = record.get("global_step")
    where = f" at step {step:,}" if isinstance(step, int) else ""
    recorded = record.get("time")
    about = [ago(now - recorded)] if isinstance(recorded, (int, float)) else []
    about += [f"{times - 1:,} earlier"] if times > 1 else []
    when = f" :gray[{' · '.join(about)}]" if about else ""
    if event == records.CHECKPOINT:
        best = ", the best so far" if record.get("is_best") else ""
        return f"Checkpoint{where}{best}{when}"
    if event == records.CONTROL_CHANGE:
        return f"{md(subject(record))} {describe(record)}{when}"
    if event == records.EPOCH:
        return f"Epoch {md(str(record.get('epoch')))} ended{where}{when}"
    if event == records.SAMPLE:
        return f"Samples{where}{when}"
    if event == records.START:
        return f"Session {md(str(record.get('session', 1)))} started{when}"
    if event == records.END:
        status, reason = str(record.get("status", "ended")), str(record.get("reason") or "")
        why = f": {md(reason, 80)}" if reason not in ("", status) else ""
        return f"{md(status[:1].upper() + status[1:])}{why}{when}"
    if event == records.FINDING:
        over = record.get("state") == "resolved"
        sign = ":green[✓]" if over else ":orange[▲]"
        return f"{sign} {md(_title(record), 60)}{' resolved' if over else ''}{where}{when}"
    if event == records.LOST:
        lost, reason = md(str(record.get("records"))), md(str(record.get("reason")), 80)
        return f":orange[▲ {lost} records lost: {reason}]{when}"
    if event == records.ERROR:
        # The message starts with the type.
        message = md(str(record.get("message") or record.get("type") or "Error"), 140)
        count = record.get("count")
        often = f" ({count:,} times)" if isinstance(count, int) and count > 1 else ""
        return f":red[✕ {message}{often}]{where}{when}"
    name = str(event)
    return f"{md(name[:1].upper() + name[1:], 60)}{where}{when}"


def _title(record: Record) -> str:
    evidence = record.get("evidence")
    return title_of_kind(str(record.get("kind", "finding")), evidence if isinstance(evidence, dict) else {})
