"""Page config, login and navigation."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import streamlit as st

from toolkit.telemetry.runfolder.records import COMPLETION, HISTOGRAM, SAMPLE, TABLE
from toolkit.telemetry.runs.formatting import md
from toolkit.telemetry.runs.store import RunQuery, UnknownRun

from . import session
from .components.brand import brand
from .components.login_page import login_page
from .components.page_states import guarded
from .components.refresh_picker import refresh_picker
from .components.settings_dialog import ask_for_settings, settings_button
from .components.shortcuts import shortcuts
from .page_links import page

_READ_S: Final = 0.3
_IN_SAMPLES: Final = (SAMPLE, COMPLETION, HISTOGRAM, TABLE, "text")


def _run_section() -> str:
    key = session.current_run()
    if key is None:
        return "Run"
    try:
        # A run may have the name of one of our sections, or an empty one.
        return f"Run · {md(session.store().card(key).name, 28)}"
    except UnknownRun:
        return "Run"


def _has_samples() -> bool:
    """Return whether the run of this tab has anything for the page of that name."""
    key, found = session.current_run(), False

    def look() -> None:
        nonlocal found
        with suppress(UnknownRun):
            # As long as the page itself would wait: a small run is read by then.
            session.store().refresh(str(key), wait_s=_READ_S if "run" in st.query_params else 0.0)
            found = any(session.store().count_events(str(key)).get(kind) for kind in _IN_SAMPLES)

    if key is not None:
        guarded("The menu", look)
    return found


def _settings() -> None:
    ask_for_settings()
    st.switch_page(page("runs"))


def show() -> None:
    """Draw the menu and the page that is asked for; Streamlit calls this at every rerun."""
    has_access = session.role() is not None
    st.set_page_config(
        page_title="Training runs",
        # Our own file: for an icon by name the browser would ask a server on the internet.
        # Media files need access; until then the browser shows Streamlit's icon.
        page_icon=str(Path(__file__).with_name("icon.png")) if has_access else None,
        layout="wide",
        initial_sidebar_state="auto",
    )
    samples = page("samples", visibility="visible" if has_access and _has_samples() else "hidden")
    chosen = st.navigation(
        {
            "": [page("runs"), page("compare")],
            _run_section() if has_access else "Run": [
                page("overview"),
                page("metrics"),
                page("alerts"),
                page("machine"),
                samples,
                page("config_notes"),
                st.Page(_settings, title="Settings", url_path="settings", visibility="hidden"),
            ],
        },
        # Without access every link leads to the login page.
        position="sidebar" if has_access else "hidden",
        # Streamlit hides the last pages of a long list until a button is clicked.
        expanded=True,
    )
    if has_access:
        brand(session.store().list_runs(RunQuery(per_page=0)).places)
        chosen.run()
        with st.sidebar, st.container(key="foot", gap="small"):
            refresh_picker()
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                settings_button()
                shortcuts()
    else:
        login_page()
