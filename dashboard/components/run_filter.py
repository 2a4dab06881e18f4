"""Which runs a page is about: the search and the project, the same on every page that lists runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import streamlit as st

from toolkit.telemetry.core.run_search import completed, completions
from toolkit.telemetry.runfolder.labels import LabelsError
from toolkit.telemetry.runs.formatting import clean, md
from toolkit.telemetry.runs.listing.search import names_in
from toolkit.telemetry.runs.store import Refused, RunCard, RunList, RunStore, UnknownRun

from .. import session
from ..charts.palette import free_colours

_KEY, _KEPT = "q", "_search"


def search_box(placeholder: str) -> str:
    """Show the search, which starts with that of the page before, and return its text while it is typed."""
    state = st.session_state
    if _KEY not in state and _KEY not in st.query_params and state.get(_KEPT):
        state[_KEY] = state[_KEPT]
    text: str = st.text_input(
        "Search",
        key=_KEY,
        bind="query-params",
        placeholder=placeholder,
        label_visibility="collapsed",
        type="search",
        live="400ms",
    )
    state[_KEPT] = text
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
            # Streamlit formats the texts of pills.
            format_func=md,
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
    return session.pick_or_none("Project", runs.projects, key="project", placeholder="any project", width=170)


# ---------------------------------------------------------------- colours of runs that are compared


def keep_colours(store: RunStore, cards: Sequence[RunCard]) -> list[RunCard]:
    """Return `cards`, each with the colour that its run keeps from now on, on every page.

    A run without one gets a colour that no other of `cards` has, as far as there are enough. Where labels cannot be
    written, a run has the colour that follows from its key: another one would change with the other runs.
    """
    if session.read_only_reason() is not None:
        return list(cards)
    kept = {}
    with suppress(Refused, LabelsError, UnknownRun):
        for key, colour in free_colours(cards).items():
            meta = store.meta(key)
            if not meta.writable:
                continue
            # Another tab may have been faster.
            colour = meta.labels.colour or colour
            if meta.labels.colour is None:
                store.label(key, replace(meta.labels, colour=colour))
            kept[key] = colour
    return [replace(card, colour=kept.get(card.key, card.colour)) for card in cards]
