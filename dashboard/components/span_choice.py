"""Which spans the Timeline shows: of which rank, and in which time window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import streamlit as st

from dashboard import session
from dashboard.charts.packing import Window, window_from_chart
from dashboard.components.chart import view_of
from dashboard.components.control_box import control_unavailable_reason, declared_control, send_request
from dashboard.components.frame import RunPage, read
from toolkit.runs.findings.alerts import findings_of
from toolkit.runs.formatting import clean
from toolkit.runs.spans import DetailedSteps, SpanTable, adjacent_steps, detailed_steps, last_steps

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
            chosen = st.selectbox(
                "Rank",
                list(choice.ranks),
                key="rank",
                bind="query-params",
                width=110,
                help="The rank whose spans are shown.",
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
        icon=":material/last_page:",
        on_click=session.set_window,
        args=(None,),
        help=f"The last {_STEPS} steps recorded in detail.",
    )
    for label, icon, later in (
        ("Earlier", ":material/chevron_left:", False),
        ("Later", ":material/chevron_right:", True),
    ):
        st.button(
            label,
            icon=icon,
            on_click=_move,
            args=(page, choice.rank, later),
            help=f"{label} steps recorded in detail.",
        )
    st.button(
        "Whole session", icon=":material/zoom_out_map:", on_click=_show_session, args=(page, choice.rank)
    )
    places = _named_places(page, table)
    key = f"_place {page.key} {choice.rank}"

    def go() -> None:
        chosen = st.session_state[key]
        # Cleared, because the next zoom would make the selection wrong.
        st.session_state[key] = None
        if chosen in places:
            session.set_window(_with_margin(places[chosen]))

    if places:
        st.selectbox(
            "Go to",
            list(places),
            index=None,
            key=key,
            on_change=go,
            placeholder="Go to steps, sessions, incidents",
            label_visibility="collapsed",
            width=300,
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
        where = f" at step {alert.step:,}" if alert.step is not None else ""
        around = next(
            (s.window for s in kept if alert.step is not None and s.first <= alert.step <= s.last), None
        )
        found[f"{clean(alert.title)[:60]}{where}"] = around or (
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
        session.set_window(_with_margin(new))


def _show_session(page: RunPage, rank: int) -> None:
    """Show the whole session that contains the middle of the window."""
    table = spans_of(page, rank, wait_s=0.0)
    window = window_of(table)
    if window is None:
        return
    nearest = int(np.argmin(np.abs(table.start - sum(window) / 2)))
    rows = table.session == table.session[nearest]
    session.set_window(_with_margin((float(table.start[rows].min()), float(table.ends()[rows].max()))))


def window_of(table: SpanTable) -> Window | None:
    """Return the time window to show: that of the URL if it has spans, else the last steps; None if unknown."""
    whole = table.whole()
    if whole is None:
        return None
    asked = session.window()
    if asked is not None and asked[0] <= whole[1] and asked[1] >= whole[0]:
        return asked
    return _with_margin(last_steps(table, _STEPS) or whole) if table.fraction_read >= 1.0 else None


def _with_margin(window: Window) -> Window:
    room = max(1e-5, (window[1] - window[0]) * 0.02)
    return window[0] - room, window[1] + room


def follow_window(key: str, whole: Window | None) -> None:
    """Show the time window that the chart with this key was zoomed to; `whole` if it shows all."""
    view = view_of(key)
    session.set_window(whole if view is None else window_from_chart(view, "time"))


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
        icon=":material/radio_button_checked:",
        disabled=reason is not None,
        help=reason or "The run records every span of its next steps; they appear here afterwards.",
    ) and send_request(page.store, page.key, {"actions": (_TRACE,)}, "record next steps in detail"):
        st.toast("Request sent. The answer appears under Control.", icon=":material/schedule:")
