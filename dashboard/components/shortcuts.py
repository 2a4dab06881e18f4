"""Keyboard shortcuts of every page. One list: the script acts on it, and `?` shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import streamlit as st

from toolkit.telemetry.runs.store import RunQuery

from .. import session
from .find_anything import find_anything, go_where_found
from .script import redraw_only, show_component


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Keys, one after the other, and what they do."""

    keys: str
    what: str
    path: str | None = None
    """The page that it opens."""


SHORTCUTS: Final = (
    Shortcut("?", "Show the shortcuts"),
    Shortcut("Ctrl+k", "Go to any page, run or metric"),
    Shortcut("/", "Go to the search or the filter of the page"),
    Shortcut("j", "Next run: in the table of runs, or from a page of a run"),
    Shortcut("k", "Previous run"),
    Shortcut("Enter", "Open the run that `j` or `k` chose in the table"),
    Shortcut("x", "Select that run, or deselect it"),
    Shortcut("c", "Compare the selected runs"),
    Shortcut("Esc", "Close a dialog, or leave a field"),
    Shortcut("g r", "Runs", "/"),
    Shortcut("g w", "Sweep", "/?show=Sweep"),
    Shortcut("g p", "Compare", "/compare"),
    Shortcut("g o", "Overview", "/overview"),
    Shortcut("g m", "Metrics", "/metrics"),
    Shortcut("g a", "Alerts", "/alerts"),
    Shortcut("g t", "Time and machine", "/machine"),
    Shortcut("g s", "Samples", "/samples"),
    Shortcut("g n", "Config & output", "/config"),
    Shortcut("g e", "Open the settings"),
)

_KEY: Final = "_shortcuts"
_NEIGHBOURS: Final = RunQuery(archived=False, per_page=1_000)
"""The runs among which `j` and `k` move on the page of a run."""


def shortcuts() -> None:
    """Listen for the shortcuts, and show a button that lists them."""
    show_component(
        "shortcuts",
        '<button type="button" class="telemetry-keys-open">Shortcuts <kbd>?</kbd></button>',
        data={"shortcuts": [asdict(one) for one in SHORTCUTS]},
        key=_KEY,
        on_move_change=_move,
        on_find_change=redraw_only,
    )
    go_where_found()
    if is_asked():
        find_anything()


def is_asked() -> bool:
    """Return whether Ctrl-K was pressed."""
    state = st.session_state.get(_KEY)
    return bool(state and state.get("find"))


def _move() -> None:
    """Show the run next to the current one, in the order of the list of runs."""
    state = st.session_state.get(_KEY)
    sent = state.get("move") if state else None
    current = session.current_run()
    if sent not in (1, -1) or current is None:
        return
    keys = [card.key for card in session.store().list_runs(_NEIGHBOURS).cards]
    if current in keys and 0 <= keys.index(current) + sent < len(keys):
        session.show_run(keys[keys.index(current) + sent])
