"""The login page, and the account section of the settings."""

from __future__ import annotations

import streamlit as st

from toolkit.telemetry.runs.formatting import md

from .. import session
from ..access.roles import Role
from .page_states import page_title, section


def login_page() -> None:
    """Show how to get access; nothing about any run."""
    _, middle, _ = st.columns([0.2, 0.6, 0.2])
    with middle:
        page_title("Training runs")
        if session.settings().access.by != "login":
            st.error("Access denied. Open the link printed in the terminal where the dashboard was started.")
        elif st.user.get("is_logged_in") is not True:
            st.markdown("Log in to see the training runs.")
            st.button("Log in", type="primary", on_click=st.login)
        else:
            is_unverified = st.user.get("email") and st.user.get("email_verified") is not True
            st.error(
                f"Access denied: {_who()} is not on the list of allowed users"
                f"{', or the provider does not confirm that this address is verified' if is_unverified else ''}. "
                f"The list is in the `--login` file, and may name this account as:"
            )
            # The id cannot be looked up elsewhere: some providers make one per application.
            st.code(f"sub:{st.user.get('sub')}", language=None)
            _log_out()


def account() -> None:
    """Show who is logged in, their role and a logout button; nothing without logins."""
    if session.settings().access.by != "login":
        return
    section("Account")
    access = "read and write access" if session.role() is Role.OPERATOR else "read-only access"
    st.caption(f"Logged in as {_who()} ({access}).")
    _log_out()


def _who() -> str:
    return md(str(st.user.get("email") or st.user.get("sub") or "This account"), 80)


def _log_out() -> None:
    st.button("Log out", key="_logout", on_click=st.logout)
