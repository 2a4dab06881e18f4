"""Runs page: all runs with status and progress, to open, compare, tag and archive."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.frame import BADGES, GLYPHS
from dashboard.data.formatting import ago, clean, clock, count, duration, md, short_number
from dashboard.data.run_search import QueryError
from dashboard.data.run_store import STILL_LOOKING, Refused, RunCard, RunList, RunQuery, RunStore, SortBy
from toolkit.runfolder.labels import LabelsError

_PER_PAGE: Final = 100
_SORTS: Final[tuple[SortBy, ...]] = get_args(SortBy)
_DAYS: Final = {"any time": None, "last day": 1.0, "last 7 days": 7.0, "last 30 days": 30.0}
_MAX_COMPARED: Final = 8
_OPENED, _SHOWN, _VERSION = "_runs_opened", "_runs_shown", "_runs_table_version"
_PAGE: Final = "page"


def main() -> None:
    """Draw the page."""
    store = session.store()
    st.set_page_config(page_title="Training runs")
    st.markdown("### Runs")
    _show_deleted()
    runs = store.list_runs(RunQuery(per_page=0))
    if not runs.total:
        # Refreshes itself until the first run appears.
        is_soon = STILL_LOOKING in runs.problems
        st.fragment(_wait_for_runs, run_every=1.0 if is_soon else session.refresh_seconds())()
        return
    query = _filters(runs)
    seconds = session.refresh_seconds()
    st.fragment(lambda: page_states.guarded("The list", lambda: _list(store, query)), run_every=seconds)()


def _wait_for_runs() -> None:
    runs = session.store().list_runs(RunQuery(per_page=0))
    if runs.total:
        st.rerun()
    if STILL_LOOKING in runs.problems:
        page_states.still_looking(runs.places)
        return
    page_states.no_runs(runs.places)
    _problems(runs)


# ---------------------------------------------------------------- which runs


def _filters(runs: RunList) -> RunQuery:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Search",
            key="q",
            bind="query-params",
            placeholder="name, tag:baseline, status:running, lr>1e-4, duration>1h",
            icon=":material/search:",
            label_visibility="collapsed",
        )
        order = st.selectbox(
            "Sort",
            _SORTS,
            key="sort",
            bind="query-params",
            format_func=lambda order: "last update" if order == "last sign" else order,
            label_visibility="collapsed",
            width=150,
        )
        archived = st.toggle("Archived", key="archived", bind="query-params")
        session.refresh_picker()
    counts = Counter(runs.statuses)
    if archived:
        counts.update(runs.archived_statuses)
    names = [name for name in BADGES if counts[name]]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        statuses = st.pills(
            "Status",
            names,
            selection_mode="multi",
            key="status",
            bind="query-params",
            format_func=lambda name: f"{BADGES[name][0]} {counts[name]:,}",
            label_visibility="collapsed",
            width="content",
        )
        days = _pick_days(runs)
        project = _pick_project(runs)
    return RunQuery(
        project=project,
        days=days,
        text=text,
        statuses=tuple(statuses or ()),
        archived=archived,
        sort=order,
        per_page=_PER_PAGE,
    )


def _pick_days(runs: RunList) -> float | None:
    """Show how old the last update may be, if the runs fill more than a page."""
    if runs.total <= _PER_PAGE:
        return None
    chosen = st.selectbox(
        "Updated", tuple(_DAYS), key="updated", bind="query-params", label_visibility="collapsed", width=150
    )
    return _DAYS.get(str(chosen))


def _pick_project(runs: RunList) -> str | None:
    """Show the projects, if there are several."""
    if len(runs.projects) < 2:
        return None
    chosen = st.selectbox(
        "Project",
        runs.projects,
        index=None,
        placeholder="any project",
        key="project",
        bind="query-params",
        label_visibility="collapsed",
        width=170,
    )
    return str(chosen) if chosen else None


def _list(store: RunStore, query: RunQuery) -> None:
    query = replace(query, page=int(st.session_state.get(_PAGE, 1)))
    try:
        runs = store.list_runs(query)
    except QueryError as error:
        st.warning(md(str(error), 400), icon=":material/search_off:")
        runs = store.list_runs(replace(query, text=""))
    _page_picker(runs)
    if not runs.cards:
        st.info("No runs match.", icon=":material/search_off:")
    else:
        picked = _table(store, runs.cards)
        _actions(store, picked)
    hidden = sum(runs.archived_statuses.values()) if not query.archived else 0
    st.caption(
        f"{count(runs.matching)} of {count(runs.total)} runs"
        + (f" · {count(hidden)} archived hidden" if hidden else "")
        + f" · watching {', '.join(md(place, 80) for place in runs.places)} · listed in {runs.read_ms:.0f} ms"
    )
    for place in runs.truncated:
        st.caption(
            f"{md(place, 80)} has more runs than are listed here. These are the newest; "
            "open any other run at `/overview?run=NAME`."
        )
    _problems(runs)


def _page_picker(runs: RunList) -> None:
    pages = -(-runs.matching // _PER_PAGE)
    if pages > 1:
        # A list that became shorter may have fewer pages than the one that was open.
        st.session_state[_PAGE] = runs.page
        st.number_input(f"Page (of {pages})", 1, pages, key=_PAGE, width=140)


def _table(store: RunStore, cards: Sequence[RunCard]) -> list[RunCard]:
    before: list[str] = list(st.session_state.get(_SHOWN, ()))
    _open_clicked(cards, before)
    cards = _with_selection_kept(cards, before)
    trends = store.trends([card.key for card in cards])
    has_others = any(card.logged_by is not None for card in cards)
    frame = pd.DataFrame([_row(card, trends, has_others=has_others) for card in cards])
    picked: Any = st.dataframe(
        frame,
        key=_table_key(),
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        height=min(44 + 35 * len(cards), 740),
        row_height=35,
        lazy=False,
        alt="Runs with status, progress and loss",
        column_config={
            "Run": st.column_config.TextColumn(pinned=True, width="medium"),
            "Open": st.column_config.ButtonColumn("", type="tertiary", width="small", key=_OPENED),
            "Status": st.column_config.TextColumn(width=110),
            "Logged by": st.column_config.TextColumn(
                width=110, help="The tool that wrote the log; empty for our own runs."
            ),
            "Alerts": st.column_config.TextColumn(
                width="small", help="Findings that were open at the last update."
            ),
            "Progress": st.column_config.ProgressColumn(
                min_value=0.0, max_value=1.0, format="percent", width="small"
            ),
            "Loss": st.column_config.TextColumn(width="small"),
            "Loss trend": st.column_config.LineChartColumn(
                help="Loss sampled at about 40 points of the log. The charts of a run use all of it.",
                width="medium",
            ),
            "Tags": st.column_config.ListColumn(width="small"),
        },
    )
    rows = picked["selection"]["rows"] if picked else []
    return [cards[row] for row in rows if row < len(cards)]


def _table_key() -> str:
    return f"_runs_table {st.session_state.setdefault(_VERSION, 0)}"


def _open_clicked(cards: Sequence[RunCard], before: Sequence[str]) -> None:
    opened = st.session_state.get(_OPENED)
    if opened and opened["row"] < len(before):
        card = next((card for card in cards if card.key == before[opened["row"]]), None)
        if card is not None:
            _open(card)


def _with_selection_kept(cards: Sequence[RunCard], before: Sequence[str]) -> list[RunCard]:
    """Return the rows to show. A selection is by row number: it must not move to another run when rows change."""
    state = st.session_state.get(_table_key())
    rows = list(state["selection"]["rows"]) if state else []
    picked = [before[row] for row in rows if row < len(before)]
    by_key = {card.key: card for card in cards}
    # While something is selected, rows keep their order.
    kept = [by_key.pop(key) for key in before if key in by_key] if picked else []
    ordered = [*kept, *by_key.values()]
    keys = [card.key for card in ordered]
    moved = [keys.index(key) for key in picked if key in keys]
    if moved != rows:
        # A new table: the browser would keep the old selection.
        st.session_state[_VERSION] = st.session_state.get(_VERSION, 0) + 1
        if moved:
            st.session_state[_table_key()] = {"selection": {"rows": moved, "columns": [], "cells": []}}
    st.session_state[_SHOWN] = keys
    return ordered


def _row(card: RunCard, trends: Mapping[str, Sequence[float]], *, has_others: bool) -> dict[str, Any]:
    now = time.time()
    status = GLYPHS.get(card.status.name, card.status.name) + ("" if card.status.sure else " ?")
    return {
        "Run": card.name,
        "Open": "Open",
        "Status": status,
        **({"Logged by": ", also ".join((card.logged_by or "", *card.also_logged_by))} if has_others else {}),
        "Alerts": _alerts(card),
        "Progress": card.progress,
        "Step": count(card.step) if card.step is not None else "",
        "Loss": short_number(card.loss) if card.loss is not None else "",
        "Loss trend": list(trends.get(card.key, ())) or None,
        "Last update": ago(now - card.last_sign) if card.last_sign is not None else "",
        "Duration": duration(card.duration_s) if card.duration_s is not None else "",
        "Tags": list(card.tags),
        "Started": clock(card.created, now=now) if card.created is not None else "",
        "Host": card.host,
        **({"Problem": card.problem} if card.problem else {}),
    }


def _alerts(card: RunCard) -> str:
    critical, warnings = card.open_findings
    # Text glyphs: the grid draws no icons, and colour alone is not accessible.
    return "  ".join(f"{glyph} {number}" for glyph, number in (("✕", critical), ("▲", warnings)) if number)


# ---------------------------------------------------------------- actions on selected runs


def _actions(store: RunStore, picked: Sequence[RunCard]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        one = picked[0] if len(picked) == 1 else None
        if (
            st.button(
                "Open", icon=":material/open_in_new:", type="primary", disabled=one is None, key="_open"
            )
            and one
        ):
            _open(one)
        enough = 2 <= len(picked) <= _MAX_COMPARED
        if st.button(
            f"Compare {len(picked)}" if enough else "Compare",
            icon=":material/compare_arrows:",
            disabled=not enough,
            key="_compare",
        ):
            st.switch_page("views/compare.py", query_params={"runs": ",".join(card.key for card in picked)})
        if session.is_viewer():
            if not picked:
                st.caption("Select rows to compare them.")
            return
        if st.button("Tag…", icon=":material/sell:", disabled=not picked, key="_tag"):
            _tag(store, picked)
        if st.button("Archive", icon=":material/archive:", disabled=not picked, key="_archive"):
            _archive(store, picked)
        if not picked:
            st.caption("Select rows to compare, tag or archive them.")


def _open(card: RunCard) -> None:
    session.show_run(card.key)
    st.switch_page("views/overview.py", query_params={"run": card.key})


@st.dialog("Tag runs")
def _tag(store: RunStore, picked: Sequence[RunCard]) -> None:
    known = store.list_runs(RunQuery(per_page=0)).tags
    new = st.multiselect("Add these tags", known, accept_new_options=True, key="_new_tags")
    st.caption("To " + ", ".join(md(card.name, 40) for card in picked))
    if st.button("Add", type="primary", disabled=not new):
        for card in picked:
            labels = store.meta(card.key).labels
            tags = tuple(dict.fromkeys((*card.tags, *new)))
            try:
                store.label(card.key, replace(labels, tags=tags))
            except (Refused, LabelsError) as error:
                st.error(md(str(error)))
                return
        st.rerun()


def _archive(store: RunStore, picked: Sequence[RunCard]) -> None:
    for card in picked:
        try:
            store.label(card.key, replace(store.meta(card.key).labels, archived=True))
        except Refused as error:
            st.error(md(str(error)))
            return
    st.toast(
        f"Archived {count(len(picked))} {'run' if len(picked) == 1 else 'runs'}. Turn on “Archived” to see them."
    )
    st.rerun()


def _problems(runs: RunList) -> None:
    if runs.is_stale:
        for problem in runs.problems:
            st.warning(md(problem), icon=":material/warning:")
        return
    skipped = [problem for problem in runs.problems if problem != STILL_LOOKING]
    if len(skipped) < len(runs.problems):
        st.caption("Still looking for runs of other tools; they appear when all folders were looked at.")
    if skipped:
        with st.expander(f"{count(len(skipped))} entries were skipped"):
            st.text("\n".join(clean(problem) for problem in skipped[:100]))


def _show_deleted() -> None:
    name = session.take_deleted()
    if name:
        st.toast(f"{md(name, 60)} was moved to the trash. You can restore it in Settings.")


main()
