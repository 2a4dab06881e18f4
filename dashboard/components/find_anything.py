"""A search for everything, on Ctrl-K: pages, runs, and the metrics of the current run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import streamlit as st

from toolkit.telemetry.runfolder.records import is_spread
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import RunQuery, UnknownRun

from .. import page_links, session
from .run_select import option_texts

_FOUND = "_found"
_LISTED = RunQuery(archived=False, per_page=1_000)


class _Place(NamedTuple):
    text: str
    page: str
    query: Mapping[str, str]


def find_anything() -> None:
    """Ask where to go, and go there."""
    # Made once: a list that changed while one chooses from it would forget the choice.
    _ask({place.text: place for place in _places()})


@st.dialog("Go to")
def _ask(places: Mapping[str, _Place]) -> None:
    chosen = st.selectbox(
        "A page, a run or a metric",
        list(places),
        index=None,
        placeholder="A page, a run or a metric",
        label_visibility="collapsed",
        key="_find",
    )
    if chosen is not None:
        st.session_state[_FOUND] = places[chosen]
        st.rerun()


def go_where_found() -> None:
    """Go to what was chosen; not from the dialog, which is drawn apart from the pages."""
    place: _Place | None = st.session_state.pop(_FOUND, None)
    if place is not None:
        st.switch_page(page_links.page(place.page), query_params=dict(place.query))


def _places() -> list[_Place]:
    store, current = session.store(), session.current_run()
    of_run = {} if current is None else {"run": current}
    found = [
        _Place(title, name, {} if name in ("runs", "compare") else of_run)
        for name, (title, _) in page_links.PAGES.items()
    ]
    found += [_Place(f"{word} · view of Runs", "runs", {"show": word}) for word in ("Charts", "Sweep")]
    cards = store.list_runs(_LISTED).cards
    found += [_Place(text, "overview", {"run": key}) for key, text in option_texts(cards).items()]
    with suppress(UnknownRun):
        names = [info.name for info in (store.metrics(current) if current is not None else ())]
        found += [
            _Place(f"{clean(name)[:80]} · metric", "metrics", {**of_run, "filter": f"^{re.escape(name)}$"})
            for name in names
            if not is_spread(name, names)
        ]
    return found
