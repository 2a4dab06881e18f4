"""The bars of a run's spans, and details of the selected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.findings.health import findings_of
from toolkit.telemetry.runs.formatting import clean, clock, count, duration, md
from toolkit.telemetry.runs.spans import (
    FAILED,
    HAS_MORE,
    UNFINISHED,
    DetailedSteps,
    SpanTable,
    adjacent_steps,
    detailed_steps,
    last_steps,
    steps_in,
    within,
)
from toolkit.telemetry.timing.names import FOLDED, HOST_CLOCK

from ... import page_links, session
from ...charts.packing import Window, window_from_chart
from ...charts.spans import SpanBars, spans_figure
from ..chart import draw_chart, picked_of, view_of
from ..control_box import control_unavailable_reason, declared_control, send_request
from ..frame import RunPage, read
from ..page_states import section
from ..script import redraw_only

_MAX_BARS: Final = 2_000
_PER_RANK: Final = 2**32
"""A clicked bar is identified by rank and row, in one number that JavaScript represents exactly."""


def draw_spans(page: RunPage, choice: SpanChoice, table: SpanTable, window: Window) -> None:
    """Draw the spans in `window`, how many there are, and details of the bar that was clicked last."""
    steps = steps_in(table, window)
    where = ""
    if steps is not None:
        where = (
            f" · step {steps[0]:,}"
            if steps[0] == steps[1]
            else f" · steps {steps[0]:,}\N{EN DASH}{steps[1]:,}"
        )
    newest = page.card.step
    if (
        steps is not None
        and newest is not None
        and newest > steps[1]
        and not session.window(session.OF_SPANS)
    ):
        where += f" :gray[the last in detail; the run is at step {newest:,}]"
    section(f"Span timeline{where}")
    tables = {choice.rank: table}
    if choice.by_rank:
        tables = {rank: spans_of(page, rank, wait_s=0.5) for rank in choice.ranks}
    most = max(20, _MAX_BARS // len(tables))
    groups: list[SpanBars] = []
    labels: list[str] = []
    total = 0
    for rank, of_rank in tables.items():
        rows, found = within(of_rank, window, most)
        total += found
        drawn = _VisibleSpans(page, rank, of_rank, rows)
        if choice.by_rank:
            groups += drawn.in_one_row(len(labels))
            labels.append(f"rank {rank}")
        else:
            groups, labels = drawn.by_name()
    shown = sum(len(group.ids) for group in groups)
    key = f"chart spans {page.key} {choice.by_rank}"
    # A double click resets the zoom, so the chart must not have a fixed range when it shows everything.
    frame = None if _is_all(table, window) else window
    draw_chart(
        spans_figure(groups, labels, frame, f"spans {page.key} {choice.rank} {choice.by_rank}"),
        key=key,
        label=f"spans, {shown} of {total}",
        name=f"{page.card.name} spans",
        on_view=lambda: follow_window(key, table.whole()),
        on_pick=redraw_only,
    )
    _about_window(page, table, window, steps, shown, total)
    _picked(page, tables, picked_of(key))


def _is_all(table: SpanTable, window: Window) -> bool:
    whole = table.whole()
    # The URL has whole microseconds.
    return whole is None or (window[0] <= whole[0] + 1e-5 and window[1] >= whole[1] - 1e-5)


class _VisibleSpans:
    """The visible spans of one rank, grouped by how they are drawn."""

    def __init__(self, page: RunPage, rank: int, table: SpanTable, rows: np.ndarray[Any, Any]) -> None:
        self._rank = rank
        self._table = table
        self._rows = rows
        self._ends = table.ends()
        self._newest = int(table.session.max()) if len(table) else 0
        self._live = page.card.live
        self._more = _records_of(page, rank, table, [row for row in rows if table.flags[row] & HAS_MORE])

    def by_name(self) -> tuple[list[SpanBars], list[str]]:
        """Return one row per name, below its parent."""
        groups: list[SpanBars] = []
        labels: list[str] = []
        for number in self._table.order:
            rows = self._rows[self._table.name[self._rows] == number]
            if len(rows):
                groups += self._by_state(number, rows, len(labels), 0.8, None)
                # Labels are right-aligned, so an indent would not show.
                within_others = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}" * self._table.depth[number]
                labels.append(f"{within_others} {self._table.names[number].label}".strip())
        return groups, labels

    def in_one_row(self, row: int) -> list[SpanBars]:
        """Return all spans in one row: nested spans are thinner and drawn on top."""
        groups: list[SpanBars] = []
        for number in sorted(self._table.order, key=lambda number: self._table.depth[number]):
            rows = self._rows[self._table.name[self._rows] == number]
            if len(rows):
                thickness = 0.9 * 0.82 ** min(self._table.depth[number], 6)
                groups += self._by_state(number, rows, row, thickness, self._table.names[number].label)
        return groups

    def _by_state(
        self, number: int, rows: np.ndarray[Any, Any], row: int, thickness: float, legend: str | None
    ) -> list[SpanBars]:
        table = self._table
        unended = np.isnan(table.duration[rows])
        failed = (table.flags[rows] & FAILED > 0) & ~unended
        going_on = unended & (table.session[rows] == self._newest) & self._live
        states: tuple[tuple[Literal["done", "failed", "open", "died"], np.ndarray[Any, Any]], ...] = (
            ("done", ~unended & ~failed),
            ("failed", failed),
            ("open", going_on),
            ("died", unended & ~going_on),
        )
        return [
            SpanBars(
                name=table.names[number].label,
                state=state,
                row=[row] * len(chosen),
                start=table.start[chosen],
                seconds=self._ends[chosen] - table.start[chosen],
                texts=[self._hover_text(int(one), state) for one in chosen],
                ids=[self._rank * _PER_RANK + int(one) for one in chosen],
                thickness=thickness,
                legend=legend,
            )
            for state, which in states
            if len(chosen := rows[which])
        ]

    def _hover_text(self, row: int, state: str) -> str:
        table = self._table
        took = _short(float(self._ends[row] - table.start[row]))
        clock_name = table.names[int(table.name[row])].clock
        first = {"open": f"open for {took}", "died": f"the process ended inside this span, after {took}"}.get(
            state, took
        )
        if clock_name != HOST_CLOCK:
            first += f" ({_line(clock_name, 40)} clock)"
        parts = [first]
        if np.isfinite(table.step[row]):
            parts[0] += f" · step {int(table.step[row]):,}"
        if table.flags[row] & UNFINISHED:
            parts.append("still open when the run ended")
        record = self._more.get(row)
        if record is not None:
            parts += _details_of(record)
        return "\n".join(parts)


def _records_of(page: RunPage, rank: int, table: SpanTable, rows: Sequence[int]) -> dict[int, Record]:
    if not rows:
        return {}
    places = [(int(table.offset[row]), int(table.length[row])) for row in rows]
    found = page.store.span_records(page.key, places, rank=rank)
    return {int(row): record for row, record in zip(rows, found, strict=True) if record is not None}


def _details_of(record: Record) -> list[str]:
    parts = []
    if isinstance(record.get("thread"), str):
        parts.append(_line(f"thread {record['thread']}", 80))
    error = record.get("error")
    if isinstance(error, dict):
        parts.append(_line(f"{error.get('type', 'error')}: {error.get('message', '')}", 160))
    attributes = record.get("attributes")
    if isinstance(attributes, dict):
        parts += [_line(f"{name} = {value}", 80) for name, value in list(attributes.items())[:8]]
    return parts


def _line(text: str, limit: int) -> str:
    """Return `text` in one line: only our own line breaks count."""
    return " ".join(clean(text[: 4 * limit]).split())[:limit]


def _about_window(
    page: RunPage, table: SpanTable, window: Window, steps: tuple[int, int] | None, shown: int, total: int
) -> None:
    words = [
        f"{_short(window[1] - window[0])} from {clock(window[0])}",
        f"{count(total)} spans" if shown == total else f"the longest {count(shown)} of {count(total)} spans",
    ]
    if steps is None and any(name.name in FOLDED for name in table.names):
        words.append(
            "short spans are recorded individually only at the start, at the end, around incidents and on request;"
            " here they are only part of the totals below"
        )
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.caption(" · ".join(words))
        if steps is not None:
            _link_to_metrics(page, *steps)


def _link_to_metrics(page: RunPage, first: int, last: int) -> None:
    room = max(20, 2 * (last - first))
    st.page_link(
        page_links.page("metrics"),
        label="Show these steps in Metrics" if last > first else f"Show step {first:,} in Metrics",
        query_params={"run": page.key, "from": str(max(0, first - room)), "to": str(last + room)},
    )


def _picked(page: RunPage, tables: Mapping[int, SpanTable], number: int | None) -> None:
    """Show the span that was clicked, with everything in its record."""
    if number is None:
        return
    rank, row = divmod(number, _PER_RANK)
    table = tables.get(rank)
    if table is None or row >= len(table):
        return
    record = _records_of(page, rank, table, [row]).get(row)
    if record is None:
        return
    with st.container(border=True):
        took = float(table.ends()[row] - table.start[row])
        words = [f"**{md(table.names[int(table.name[row])].label, 80)}** {_short(took)}"]
        if np.isfinite(table.step[row]):
            words.append(f"step {int(table.step[row]):,}")
        words.append(f"started {clock(float(table.start[row]))}")
        if table.why_kept(row):
            words.append(f"recorded {KEPT_BECAUSE[table.why_kept(row)]}")
        st.markdown(" · ".join(words))
        more = _details_of(record)
        if more:
            st.text(clean("\n".join(more)))
        if np.isfinite(table.step[row]):
            _link_to_metrics(page, int(table.step[row]), int(table.step[row]))


def _short(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds:.3g} s" if 1.0 <= seconds < 100 else duration(seconds)


# ---------------------------------------------------------------- which spans are shown


KEPT_BECAUSE: Final = {
    "start": "at the start",
    "end": "at the end",
    "incident": "around an incident",
    "asked": "on request",
}
"""Why short spans were recorded individually."""

_MAX_RANKS: Final = 64
_STEPS: Final = 5
"""Steps in view by default, and how far one click moves."""
_AROUND_S: Final = 10.0
_TRACE: Final = "trace"


@dataclass(slots=True)
class SpanChoice:
    """The values of the switches above the bars."""

    rank: int = 0
    by_rank: bool = False
    ranks: Sequence[int] = (0,)
    in_part: bool = False
    """Whether some spans were still unread when the switches were drawn."""


def choose_spans(page: RunPage, choice: SpanChoice) -> None:
    """Show the switches, and store the selection in `choice`."""
    read(page)
    choice.ranks = page.store.ranks(page.key)[:_MAX_RANKS]
    several = len(choice.ranks) > 1
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if several:
            rows = session.pick_one("Rows", ("By span", "By rank"), default="By span", key="by")
            choice.by_rank = rows == "By rank"
            chosen = session.kept_in_url(
                st.selectbox,
                "Rank",
                list(choice.ranks),
                key="rank",
                width=90,
            )
            choice.rank = int(chosen or 0)
        table = spans_of(page, choice.rank, wait_s=2.0)
        choice.in_part = table.fraction_read < 1.0
        if len(table):
            _places(page, choice, table)
        if _TRACE in _declared_actions(page):
            _ask_for_trace(page)


def _places(page: RunPage, choice: SpanChoice, table: SpanTable) -> None:
    st.button(
        "Last steps",
        on_click=session.set_window,
        args=(None, session.OF_SPANS),
        help=f"The last {_STEPS} steps recorded in detail.",
    )
    for label, later in (("Earlier", False), ("Later", True)):
        st.button(
            label,
            on_click=_move,
            args=(page, choice.rank, later),
            help=f"{label} steps recorded in detail.",
        )
    places = _named_places(page, table)
    key = f"_place {page.key} {choice.rank}"

    def go() -> None:
        chosen = st.session_state[key]
        # Cleared, because the next zoom would make the selection wrong.
        st.session_state[key] = None
        if chosen in places:
            session.set_window(_with_margin(places[chosen]), session.OF_SPANS)

    if places:
        st.selectbox(
            "Go to",
            list(places),
            index=None,
            key=key,
            on_change=go,
            placeholder="Go to steps, sessions, incidents",
            label_visibility="collapsed",
            width=270,
        )


def _named_places(page: RunPage, table: SpanTable) -> dict[str, Window]:
    """Return time windows worth looking at, newest first."""
    kept = detailed_steps(table)
    found: dict[str, Window] = {}
    for steps in reversed(kept[-40:]):
        found[_steps_label(steps)] = steps.window
    for alert in findings_of(page.store, page.key)[:20]:
        if alert.time is None:
            continue
        where = f" at step {alert.start_step:,}" if alert.start_step is not None else ""
        around = next(
            (
                s.window
                for s in kept
                if alert.start_step is not None and s.first <= alert.start_step <= s.last
            ),
            None,
        )
        found[f"{clean(title_of(alert))[:60]}{where}"] = around or (
            alert.time - _AROUND_S,
            alert.time + _AROUND_S,
        )
    ends = table.ends()
    for number in np.unique(table.session)[::-1].tolist():
        rows = table.session == number
        found[f"session {number} (all)"] = (float(table.start[rows].min()), float(ends[rows].max()))
    return found


def _steps_label(steps: DetailedSteps) -> str:
    why = f", {KEPT_BECAUSE[steps.why]}" if steps.why in KEPT_BECAUSE else ""
    if steps.first == steps.last:
        return f"step {steps.first:,}{why} (session {steps.session})"
    return f"steps {steps.first:,}\N{EN DASH}{steps.last:,}{why} (session {steps.session})"


def _move(page: RunPage, rank: int, later: bool) -> None:
    table = spans_of(page, rank, wait_s=0.0)
    window = window_of(table)
    new = adjacent_steps(table, window, _STEPS, later=later) if window is not None else None
    if new is not None:
        session.set_window(_with_margin(new), session.OF_SPANS)


def window_of(table: SpanTable) -> Window | None:
    """Return the time window to show: that of the URL if it has spans, else the last steps; None if unknown."""
    whole = table.whole()
    if whole is None:
        return None
    asked = session.window(session.OF_SPANS)
    if asked is not None and asked[0] <= whole[1] and asked[1] >= whole[0]:
        return asked
    return _with_margin(last_steps(table, _STEPS) or whole) if table.fraction_read >= 1.0 else None


def _with_margin(window: Window) -> Window:
    room = max(1e-5, (window[1] - window[0]) * 0.02)
    return window[0] - room, window[1] + room


def follow_window(key: str, whole: Window | None) -> None:
    """Show the time window that the chart with this key was zoomed to; `whole` if it shows all."""
    view = view_of(key)
    session.set_window(whole if view is None else window_from_chart(view), session.OF_SPANS)


def spans_of(page: RunPage, rank: int, *, wait_s: float) -> SpanTable:
    """Return the spans of a rank; open spans of a live run extend to its last update."""
    if rank:
        page.store.refresh(page.key, wait_s=wait_s, rank=rank)
    table = page.store.spans(page.key, wait_s=wait_s, rank=rank)
    card = page.card
    if not len(table) or not card.live or card.last_sign is None:
        return table
    newest = int(table.session.max())
    heard = max(card.last_sign, table.heard.get(newest, 0.0))
    return replace(table, heard={**table.heard, newest: heard})


def _declared_actions(page: RunPage) -> Sequence[str]:
    actions = declared_control(page.store, page.key).get("actions")
    return [name for name in actions if isinstance(name, str)] if isinstance(actions, (list, tuple)) else []


def _ask_for_trace(page: RunPage) -> None:
    if session.is_viewer():
        return
    reason = control_unavailable_reason(page.store, page.key)
    if st.button(
        "Record next steps in detail",
        disabled=reason is not None,
        help=reason or "The run records every span of its next steps; they appear here afterwards.",
    ) and send_request(page.store, page.key, {"actions": (_TRACE,)}, "record next steps in detail"):
        st.toast("Request sent. The answer appears under Control.")
