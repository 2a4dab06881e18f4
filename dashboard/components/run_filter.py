"""Which runs a page is about: the search and the project, the same on every page that lists runs."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import session
from toolkit.core.run_search import completed, completions
from toolkit.runs.formatting import clean
from toolkit.runs.listing.search import names_in
from toolkit.runs.store import RunCard, RunList

_KEY = "q"


def search_box(placeholder: str) -> str:
    """Show the search, which starts with that of the page before, and return its text while it is typed."""
    session.take_search()
    text = st.text_input(
        "Search",
        key=_KEY,
        bind="query-params",
        placeholder=placeholder,
        icon=":material/search:",
        label_visibility="collapsed",
        type="search",
        live="400ms",
    )
    session.keep_search(text)
    return text


def suggest_names(text: str, cards: Sequence[RunCard]) -> None:
    """Offer the names that complete the last word of the search."""
    found = completions(text, names_in(cards)) if text else []
    if found:
        key = f"_names {text}"
        st.pills(
            "Names",
            [clean(name) for name in found],
            key=key,
            on_change=_complete,
            args=(text, key),
            label_visibility="collapsed",
        )


def _complete(text: str, key: str) -> None:
    chosen = st.session_state.get(key)
    if chosen:
        st.session_state[_KEY] = completed(text, str(chosen))


def pick_project(runs: RunList) -> str | None:
    """Show the projects, if there are several, and return the chosen one."""
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
