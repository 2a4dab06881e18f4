"""Settings page: what the dashboard was started with, its cache, and the trash."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.login_page import account
from dashboard.data.run_store import Refused
from dashboard.data.formatting import clean, clock, count, md, size


def main() -> None:
    """Draw the page."""
    st.set_page_config(page_title="Settings")
    st.markdown("### Settings")
    page_states.guarded("The settings", _started_with)
    page_states.guarded("The cache", _cache)
    page_states.guarded("The trash", _trash)
    page_states.guarded("The account", account)
    page_states.guarded("About", _about)


def _started_with() -> None:
    settings = session.settings()
    st.markdown("**Log directories**")
    for path in settings.log_dirs:
        st.code(clean(str(path)), language=None)
    st.caption("Chosen at the start: `python run_dashboard.py --log-dir DIR`, as often as needed.")
    reason = session.why_only_look()
    if settings.read_only:
        st.info(
            "Started with `--read-only`: nothing can be asked of runs, labelled or deleted.",
            icon=":material/lock:",
        )
    elif reason is not None:
        st.info(f"{reason} Nothing can be asked of runs, labelled or deleted.", icon=":material/lock:")
    st.markdown("**Refresh**")
    session.refresh_picker()
    st.caption("How often pages read what live runs have written since. Light or dark follows the browser.")


def _cache() -> None:
    store = session.local_store()
    cache = store.cache
    st.markdown("**Cache**")
    if cache is None:
        st.caption(
            "None: this user has no home folder, and `XDG_CACHE_HOME` names no other. "
            "Large logs are read again after each start."
        )
        return
    trouble = cache.distrusted()
    if trouble is not None:
        st.warning(
            f"{md(str(cache.folder), 200)} {trouble}, so nothing is kept there and nothing in it is believed. "
            "Large logs are read again after each start."
        )
        return
    st.caption(
        f"Columns of large logs, {size(cache.size())}, in {md(str(cache.folder), 200)}. "
        "It may be deleted at any time: the logs themselves are elsewhere, and are read again."
    )
    if session.only_looks():
        return
    if st.button("Empty the cache", icon=":material/cleaning_services:"):
        try:
            st.toast(f"Freed {size(store.empty_cache())}.")
        except Refused as error:
            st.error(md(str(error)))


def _trash() -> None:
    store = session.store()
    st.markdown("**Trash**")
    trashed = store.trash()
    if not trashed:
        st.caption("Empty. Deleted runs stay here until the trash is emptied.")
        return
    st.dataframe(
        pd.DataFrame(
            [
                {"run": item.name, "deleted": clock(item.deleted), "size": size(item.bytes_held)}
                for item in trashed
            ]
        ),
        hide_index=True,
        alt="Deleted runs",
    )
    if session.only_looks():
        return
    names = {item.token: f"{clean(item.name)}, deleted {clock(item.deleted)}" for item in trashed}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        token = st.selectbox(
            "Deleted run",
            list(names),
            format_func=lambda token: names.get(token, ""),
            label_visibility="collapsed",
        )
        if st.button("Bring back", icon=":material/undo:", type="primary"):
            try:
                key = store.restore(str(token))
            except Refused as error:
                st.error(md(str(error)))
            else:
                st.toast(f"{md(key)} is back.")
                st.rerun()
        if st.button("Empty the trash…", icon=":material/delete_forever:"):
            _empty(len(trashed))


@st.dialog("Empty the trash?")
def _empty(number: int) -> None:
    st.markdown(f"{count(number)} runs are deleted for good. This cannot be undone.")
    if st.button("Delete for good", type="primary"):
        try:
            session.store().empty_trash()
        except Refused as error:
            st.error(md(str(error)))
        else:
            st.rerun()


def _about() -> None:
    st.markdown("**About**")
    packages = ("ai-toolkit-telemetry", "streamlit", "plotly", "pandas", "pyarrow")
    st.caption(" · ".join(f"{name} {_version(name)}" for name in packages))
    st.caption(
        "Nothing leaves this machine: no account, no usage statistics, no fonts or scripts from elsewhere."
        if session.settings().admission.by != "login"
        else "Nothing leaves this machine but what logging in takes: no usage statistics, no scripts from elsewhere."
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


main()
