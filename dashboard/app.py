"""Page config, the door and navigation, nothing else."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import session
from dashboard.components.login_page import doorway
from dashboard.data.run_store import UnknownRun
from dashboard.data.formatting import md


def _run_section() -> str:
    key = session.current_run()
    if key is None:
        return "Run"
    try:
        # A run may be called like a section of ours, or like nothing at all.
        return f"Run · {md(session.store().card(key).name, 28)}"
    except UnknownRun:
        return "Run"


is_in = session.rights() is not None
st.set_page_config(
    page_title="Training runs",
    # A picture of our own: for an icon by name the browser would ask a server on the internet.
    # Pictures are for those who are in; before that the browser shows Streamlit's.
    page_icon=str(Path(__file__).with_name("icon.png")) if is_in else None,
    layout="wide",
    initial_sidebar_state="auto",
)
chosen = st.navigation(
    {
        "": [
            st.Page("views/runs.py", title="Runs", icon=":material/list:", default=True),
            st.Page("views/compare.py", title="Compare", icon=":material/compare_arrows:"),
        ],
        _run_section() if is_in else "Run": [
            st.Page("views/overview.py", title="Overview", icon=":material/dashboard:"),
            st.Page("views/metrics.py", title="Metrics", icon=":material/show_chart:"),
            st.Page("views/system.py", title="System", icon=":material/memory:"),
            st.Page("views/alerts.py", title="Alerts", icon=":material/warning:"),
            st.Page("views/timeline.py", title="Timeline", icon=":material/view_timeline:"),
            st.Page("views/samples.py", title="Samples", icon=":material/image:"),
            st.Page("views/completions.py", title="Completions", icon=":material/forum:"),
            st.Page(
                "views/config_notes.py",
                title="Config & notes",
                icon=":material/description:",
                url_path="config",
            ),
        ],
        "Dashboard": [
            st.Page(
                "views/settings_page.py", title="Settings", icon=":material/settings:", url_path="settings"
            )
        ],
    },
    # Who has not come in yet stays at the door of whichever page their link leads to.
    position="sidebar" if is_in else "hidden",
)
if is_in:
    chosen.run()
else:
    doorway()
