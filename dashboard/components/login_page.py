"""The login page, and the account section of the settings."""

from __future__ import annotations

import streamlit as st

from dashboard import session
from dashboard.access.allow_list import entry_by_id
from dashboard.access.roles import Role
from dashboard.components.headings import page_title, section
from toolkit.runs.formatting import md


def login_page() -> None:
    """Show how to get access; nothing about any run."""
    _, middle, _ = st.columns([0.2, 0.6, 0.2])
    # By this key the page's style knows that there is no sidebar.
    with middle, st.container(key="login"):
        page_title("Training runs")
        access = session.settings().access
        if access.by != "login":
            st.error("Access denied. Open the link printed in the terminal where the dashboard was started.")
        elif st.user.get("is_logged_in") is True:
            _access_denied()
        else:
            st.markdown("Log in to see the training runs.")
            with st.container(horizontal=True):
                for name in access.providers or (None,):
                    st.button(
                        "Log in" if name is None else f"Log in with {md(name, 40)}",
                        type="primary",
                        icon=":material/login:",
                        key=f"_login {name}",
                        on_click=st.login,
                        args=(name,),
                    )


def account() -> None:
    """Show who is logged in, their role and a logout button; nothing without logins."""
    if session.settings().access.by != "login":
        return
    section("Account")
    access = "read and write access" if session.role() is Role.OPERATOR else "read-only access"
    st.caption(f"Logged in as {_who()} ({access}).")
    _log_out()


def _access_denied() -> None:
    if st.user.get("email") and st.user.get("email_verified") is not True:
        st.error(f"Access denied for {_who()}: the provider does not confirm that this address is verified.")
    else:
        st.error(f"Access denied: {_who()} is not on the list of allowed users.")
    st.caption("The list is in the `--login` file of the person who runs this dashboard.")
    by_id = entry_by_id(st.user.to_dict())
    if by_id is not None:
        # The id cannot be looked up elsewhere: some providers make one per application.
        st.caption("To allow this account, add this entry:")
        st.code(by_id, language=None)
    _log_out()


def _who() -> str:
    return md(str(st.user.get("email") or st.user.get("sub") or "This account"), 80)


def _log_out() -> None:
    st.button("Log out", icon=":material/logout:", key="_logout", on_click=st.logout)
