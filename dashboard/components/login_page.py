"""The door of a dashboard that people log in to: the way in, and who is logged in."""

from __future__ import annotations

import streamlit as st

from dashboard import session
from dashboard.access.allow_list import entry_by_id
from dashboard.access.roles import Rights
from dashboard.data.formatting import md


def doorway() -> None:
    """Show how to come in, to somebody who has not; nothing about any run."""
    _, middle, _ = st.columns([0.2, 0.6, 0.2])
    with middle:
        st.markdown("### Training runs")
        admission = session.settings().admission
        if admission.by != "login":
            st.error("Nobody has let this page in. Open the address that stands in the dashboard's terminal.")
        elif st.user.get("is_logged_in") is True:
            _not_on_the_list()
        else:
            st.markdown("Log in to see them.")
            with st.container(horizontal=True):
                for name in admission.providers or (None,):
                    st.button(
                        "Log in" if name is None else f"Log in with {md(name, 40)}",
                        type="primary",
                        icon=":material/login:",
                        key=f"_login {name}",
                        on_click=st.login,
                        args=(name,),
                    )


def account() -> None:
    """Show who is logged in and what they may do, with the way out; nothing where nobody logs in."""
    if session.settings().admission.by != "login":
        return
    st.markdown("**Account**")
    may = "may steer runs" if session.rights() is Rights.STEER else "may only look"
    st.caption(f"Logged in as {_who()}, who {may}.")
    _log_out()


def _not_on_the_list() -> None:
    if st.user.get("email") and st.user.get("email_verified") is not True:
        st.error(f"{_who()} is not let in: the provider does not say that this address was verified.")
    else:
        st.error(f"{_who()} is not on the list of those who may come in.")
    st.caption("Whoever runs this dashboard keeps the list, in the file behind `--login`.")
    by_id = entry_by_id(st.user.to_dict())
    if by_id is not None:
        # Nobody can look up the id elsewhere: some providers make one for each application.
        st.caption("An entry for this very account is:")
        st.code(by_id, language=None)
    _log_out()


def _who() -> str:
    return md(str(st.user.get("email") or st.user.get("sub") or "This account"), 80)


def _log_out() -> None:
    st.button("Log out", icon=":material/logout:", key="_logout", on_click=st.logout)
