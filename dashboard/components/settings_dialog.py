"""The settings of the dashboard, opened by a button at the sidebar's foot: theme, log directories, cache, trash."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import streamlit as st

from toolkit.telemetry.runs.formatting import ago, clean, clock, count, md, size
from toolkit.telemetry.runs.labels import RunName, labels_of
from toolkit.telemetry.runs.store import StoreState

from .. import session
from . import page_states
from .login_page import account
from .page_states import section
from .run_table import fact_table
from .script import show_component

_CLOCK_SHOWN_S: Final = 2.0
_ASKED: Final = "_settings_asked"


def settings_button() -> None:
    """Show the button that opens the settings; after a link to them they open by themselves."""
    is_asked = st.session_state.pop(_ASKED, False)
    if st.button("Settings", type="tertiary", key="_settings") or is_asked:
        _settings()


def ask_for_settings() -> None:
    """Have the settings opened with the page that is drawn next."""
    st.session_state[_ASKED] = True


@st.dialog("Settings", width="medium")
def _settings() -> None:
    page_states.guarded("The theme", _theme)
    page_states.guarded("The settings", _started_with)
    page_states.guarded("The cache", _cache)
    page_states.guarded("The trash", _trash)
    page_states.guarded("The account", account)
    page_states.guarded("About", _about)


def _theme() -> None:
    section("Theme")
    show_component(
        "theme_switch",
        '<div class="telemetry-choices" role="radiogroup" aria-label="Theme"></div>',
        data={},
        key="_theme",
    )
    st.caption(f"Times are in {md(_time_zone())}.")


def _started_with() -> None:
    settings = session.settings()
    state = session.store().state()
    section("Log directories" if state.kind == "folders" else "Engine")
    for place in state.places:
        st.code(clean(place), language=None)
    if state.kind == "folders":
        st.caption("Set at startup with `--log-dir DIR`, which can be repeated.")
    else:
        _engine(state)
    reason = session.read_only_reason()
    if settings.read_only:
        st.info(
            "Started with `--read-only`: runs cannot be controlled, labelled or deleted.",
        )
    elif reason is not None:
        st.info(f"{reason} Runs cannot be controlled, labelled or deleted.")


def _time_zone() -> str:
    """Return the time zone of the times on the pages, and the browser's if that is another one."""
    now = datetime.now(timezone.utc).astimezone()
    text = f"{now:%Z (UTC%z)}, the time zone of the dashboard's machine"
    # A browser counts the minutes the other way round.
    minutes = st.context.timezone_offset
    if minutes is not None and timedelta(minutes=-minutes) != now.utcoffset():
        text += f"; your browser's is {st.context.timezone or 'another one'}"
    return text


def _engine(state: StoreState) -> None:
    st.caption(f"{md(state.version or 'The version is not known')}. Set at startup with `--store`.")
    if not state.feeds:
        st.caption("No node has sent records yet.")
        return
    rows = [
        {
            "node": clean(feed.node),
            "last heard": ago(feed.lag_s),
            "behind": size(feed.behind_bytes),
            "clock": f"{feed.clock_ahead_s:+.1f} s" if abs(feed.clock_ahead_s) >= _CLOCK_SHOWN_S else "",
            "problem": clean(feed.problem or ""),
        }
        for feed in state.feeds
    ]
    fact_table(rows, "Nodes that send records")


def _cache() -> None:
    store = session.store()
    cache = store.cache_state()
    if cache is None:
        return
    section("Cache")
    if cache.place is None:
        st.caption(
            "No cache: this user has no home folder and `XDG_CACHE_HOME` is not set. "
            "Large logs are read again after each start."
        )
        return
    if cache.problem is not None:
        st.warning(
            f"The cache folder {md(cache.place, 200)} {md(cache.problem)}, so it is not used. "
            "Large logs are read again after each start."
        )
        return
    st.caption(
        f"Columns of large logs: {size(cache.bytes_held)} in {md(cache.place, 200)}. "
        "You can delete it at any time; the logs are then read again."
    )
    if session.read_only_reason() is not None:
        return
    if st.button("Clear the cache"):
        page_states.is_done(lambda: st.toast(f"Freed {size(store.empty_cache())}."))


def _trash() -> None:
    store = session.store()
    section("Trash")
    trashed = store.trash()
    if not trashed:
        is_engine = store.state().kind == "engine"
        until = "you show them again" if is_engine else "you empty it"
        st.caption(f"The trash is empty. Deleted runs stay here until {until}.")
        return
    rows = [
        {"run": item.name, "deleted": clock(item.deleted), "size": size(item.bytes_held)} for item in trashed
    ]
    fact_table(rows, "Deleted runs")
    if session.read_only_reason() is not None:
        return
    texts = [
        RunName(f"{clean(item.name)}, deleted {clock(item.deleted)}", item.token, "", dict)
        for item in trashed
    ]
    names = {item.token: label.text for item, label in zip(trashed, labels_of(texts), strict=True)}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        token = st.selectbox(
            "Deleted run",
            list(names),
            format_func=lambda token: names.get(token, ""),
            label_visibility="collapsed",
        )
        if st.button("Restore", type="primary") and page_states.is_done(
            lambda: st.toast(f"{md(store.restore(str(token)))} was restored.")
        ):
            st.rerun()
        with st.popover("Empty the trash…"):
            _empty(len(trashed))


def _empty(number: int) -> None:
    """Ask once more."""
    st.markdown(
        f"{count(number)} {'run' if number == 1 else 'runs'} will be deleted permanently. This cannot be undone."
    )
    if st.button("Delete permanently", key="_delete_permanently") and page_states.is_done(
        session.store().empty_trash
    ):
        st.rerun()


def _about() -> None:
    section("About")
    packages = ("ai-toolkit-telemetry", "streamlit", "plotly", "pandas", "pyarrow")
    st.caption(" · ".join(f"{name} {_version(name)}" for name in packages))
    if session.store().state().kind == "engine":
        st.caption("Data comes from the engine alone: no usage statistics, no external fonts or scripts.")
        return
    st.caption(
        "No data leaves this machine: no account, no usage statistics, no external fonts or scripts."
        if session.settings().access.by != "login"
        else "Apart from the login, no data leaves this machine: no usage statistics, no external fonts or scripts."
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
