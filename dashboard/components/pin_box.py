"""Lets a user pin, order and hide metrics; a chart's star does the same for its metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from dashboard import session
from dashboard.components.frame import RunPage
from toolkit.runfolder.labels import LabelsError
from toolkit.runfolder.metrics import INTERNAL
from toolkit.runfolder.records import is_spread
from toolkit.runs.formatting import md
from toolkit.runs.listing.pins import MAX_PINS, Pins, moved, pins_of, save_hidden, save_pinned
from toolkit.runs.store import Refused

_CHANGED, _PROBLEM = "_pins_changed", "_pins_problem"


def can_pin() -> bool:
    """Return whether this visitor may change pins."""
    return session.read_only_reason() is None


def pin_box(page: RunPage) -> Pins:
    """Show which metrics are pinned and hidden, let a user change that, and return it."""
    problem = st.session_state.pop(_PROBLEM, None)
    if problem:
        st.error(md(problem))
    pins = pins_of(page.store, page.key)
    if not can_pin():
        return pins
    with st.popover(
        "Pins", icon=":material/star:", help="Metrics to show first, in this order, and metrics to hide."
    ):
        logged = [info.name for info in page.store.metrics(page.key)]
        names = [name for name in logged if not name.startswith(INTERNAL) and not is_spread(name, logged)]
        _choose(page, pins, names)
        _order(page, pins)
        _hide(page, pins, names)
    return pins_of(page.store, page.key)


def pin_star(page: RunPage, metric: str, pins: Pins) -> tuple[bool, Callable[[], None]] | None:
    """Return whether `metric` is pinned and what a click on its star does; None if nothing can be changed."""
    if not can_pin():
        return None
    is_pinned = metric in pins.pinned

    def toggle() -> None:
        now = pins_of(page.store, page.key)
        others = [name for name in now.pinned if name != metric]
        _save(page, others if is_pinned else [*others, metric], only_this_run=now.only_this_run)

    return is_pinned, toggle


def redraw_after_pinning() -> None:
    """Draw the whole page again if a star was clicked: the chart moves to another part of it."""
    if st.session_state.pop(_CHANGED, False):
        st.rerun()


def _choose(page: RunPage, pins: Pins, names: Sequence[str]) -> None:
    key = f"_pins {page.key}"
    # A star, or another tab, may have changed them since.
    if list(st.session_state.get(key, ())) != list(pins.pinned):
        st.session_state[key] = list(pins.pinned)
    st.multiselect(
        "Pinned metrics",
        [*pins.pinned, *(name for name in names if name not in pins.pinned)],
        key=key,
        max_selections=MAX_PINS,
        placeholder="Choose metrics",
        on_change=lambda: _save(page, st.session_state[key], only_this_run=pins.only_this_run),
    )
    only = f"_pins_only {page.key}"
    st.session_state[only] = pins.only_this_run
    st.toggle(
        "Only for this run",
        key=only,
        help="Otherwise for all runs of the project.",
        on_change=lambda: _save(page, _kept(page, only), only_this_run=st.session_state[only]),
    )


def _kept(page: RunPage, only: str) -> Sequence[str]:
    """Return the pins after the switch: a run of its own starts with those of the project, and returns to them."""
    if st.session_state[only]:
        return pins_of(page.store, page.key).pinned
    return page.store.project_settings(page.card.project).pinned_metrics


def _order(page: RunPage, pins: Pins) -> None:
    if len(pins.pinned) < 2:
        return
    for place, name in enumerate(pins.pinned):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(md(name, 40), width="stretch")
            for by, word, icon in ((-1, "up", "arrow_upward"), (1, "down", "arrow_downward")):
                st.button(
                    word.capitalize(),
                    icon=f":material/{icon}:",
                    help=f"Move {md(name, 40)} {word}",
                    key=f"_pin_{word} {page.key} {name}",
                    type="tertiary",
                    disabled=not 0 <= place + by < len(pins.pinned),
                    on_click=_save,
                    args=(page, moved(pins.pinned, name, by)),
                    kwargs={"only_this_run": pins.only_this_run},
                )


def _hide(page: RunPage, pins: Pins, names: Sequence[str]) -> None:
    key = f"_hidden {page.key}"
    if list(st.session_state.get(key, ())) != list(pins.hidden):
        st.session_state[key] = list(pins.hidden)

    def hide() -> None:
        _try(lambda: save_hidden(page.store, page.key, st.session_state[key]))

    st.multiselect(
        "Hidden metrics",
        [*pins.hidden, *(name for name in names if name not in pins.hidden)],
        key=key,
        placeholder="None",
        on_change=hide,
    )


def _save(page: RunPage, names: Sequence[str], *, only_this_run: bool) -> None:
    _try(lambda: save_pinned(page.store, page.key, names, only_this_run=only_this_run))


def _try(change: Callable[[], None]) -> None:
    try:
        change()
    except (Refused, LabelsError) as error:
        st.session_state[_PROBLEM] = str(error)
    st.session_state[_CHANGED] = True
