"""Page config, login and navigation."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import session
from dashboard.assets import page_style
from dashboard.components.login_page import login_page
from dashboard.components.shortcuts import shortcuts
from toolkit.runs.formatting import md
from toolkit.runs.store import UnknownRun


def _run_section() -> str:
    key = session.current_run()
    if key is None:
        return "Run"
    try:
        # A run may have the name of one of our sections, or an empty one.
        return f"Run · {md(session.store().card(key).name, 28)}"
    except UnknownRun:
        return "Run"


has_access = session.role() is not None
st.set_page_config(
    page_title="Training runs",
    # Our own file: for an icon by name the browser would ask a server on the internet.
    # Media files need access; until then the browser shows Streamlit's icon.
    page_icon=str(Path(__file__).with_name("icon.png")) if has_access else None,
    layout="wide",
    initial_sidebar_state="auto",
)
st.html(f"<style>{page_style()}</style>")
chosen = st.navigation(
    {
        "": [
            st.Page("views/runs.py", title="Runs", icon=":material/list:", default=True),
            st.Page("views/sweep.py", title="Sweep", icon=":material/query_stats:"),
            st.Page("views/compare.py", title="Compare", icon=":material/compare_arrows:"),
        ],
        _run_section() if has_access else "Run": [
            st.Page("views/overview.py", title="Overview", icon=":material/dashboard:"),
            st.Page("views/metrics.py", title="Metrics", icon=":material/show_chart:"),
            st.Page("views/system.py", title="System", icon=":material/memory:"),
            st.Page("views/alerts.py", title="Alerts", icon=":material/warning:"),
            st.Page("views/timeline.py", title="Timeline", icon=":material/view_timeline:"),
            st.Page("views/output.py", title="Output", icon=":material/terminal:"),
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
    # Without access every link leads to the login page.
    position="sidebar" if has_access else "hidden",
    # Streamlit hides the last pages of a long list behind a button.
    expanded=True,
)
if has_access:
    chosen.run()
    with st.sidebar:
        shortcuts()
else:
    login_page()
