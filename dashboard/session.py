"""What one browser tab is looking at: every session-state key and URL parameter, behind a typed function."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import streamlit as st

from dashboard.access.roles import Rights, rights_named
from dashboard.charts.packing import Window
from dashboard.data.local_store import LocalStore
from dashboard.data.run_store import RunStore, XAxis
from dashboard.settings import DashboardSettings

_SECONDS: Final = {"Off": None, "2 s": 2.0, "5 s": 5.0, "30 s": 30.0}
SMOOTHINGS: Final = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
DEFAULT_SMOOTHING: Final = 0.9
_AXES: Final[dict[str, XAxis]] = {"Step": "step", "Time": "time", "Epoch": "epoch"}

_RUN = "run"
_RUN_KEPT = "_run"
_FROM, _TO = "from", "to"
_REFRESH = "refresh"
_ASKED = "_asked"
_TOLD = "_told"
_CONFIRM = "_confirm"
_DELETED = "_deleted"


@st.cache_resource(show_spinner=False)
def _store(log_dirs: tuple[str, ...], cache_dir: str | None, read_only: bool) -> LocalStore:
    # Streamlit collects garbage after every region it draws, and would look at all of pandas and pyarrow each time.
    gc.collect()
    gc.freeze()
    return LocalStore(
        [Path(path) for path in log_dirs],
        cache_dir=None if cache_dir is None else Path(cache_dir),
        read_only=read_only,
        # Asked at each change, in the tab that wants it: one store serves people with different rights.
        why_only_look=_why_only_look,
    )


def settings() -> DashboardSettings:
    """Return what the dashboard was started with."""
    return DashboardSettings.from_environment()


def rights() -> Rights | None:
    """Return what whoever looks at this tab may do; None where nobody has let them in.

    Nothing here comes from the page in their browser: it is settled when the tab connects, by the gate in front of the
    server or by a cookie that the server signed.
    """
    admission = settings().admission
    if admission.by == "token":
        return rights_named(st.user.get("rights"))
    if admission.by == "login":
        return admission.guests.rights_of(st.user.to_dict()) if admission.guests is not None else None
    return Rights.STEER


def only_looks() -> bool:
    """Say whether whoever looks at this tab came with no more than the right to look; they are shown no controls."""
    return rights() is not Rights.STEER


def why_only_look() -> str | None:
    """Return why this tab may change nothing, as a sentence; None where it may."""
    if settings().read_only:
        return "The dashboard was started with `--read-only`."
    reason = _why_only_look()
    return None if reason is None else f"{reason[0].upper()}{reason[1:]}."


def _why_only_look() -> str | None:
    if not only_looks():
        return None
    by_login = settings().admission.by == "login"
    return "your account may only look" if by_login else "the address that you came with may only look"


def local_store() -> LocalStore:
    """Return the one store of this process; only the settings page asks for more than the protocol has."""
    started_with = settings()
    return _store(
        tuple(str(path) for path in started_with.log_dirs),
        None if started_with.cache_dir is None else str(started_with.cache_dir),
        started_with.read_only,
    )


def store() -> RunStore:
    """Return where runs live."""
    return local_store()


# ---------------------------------------------------------------- which run


def current_run() -> str | None:
    """Return the run that the URL names, or the one that this tab showed last."""
    named = st.query_params.get(_RUN)
    if named:
        st.session_state[_RUN_KEPT] = named
        return str(named)
    kept = st.session_state.get(_RUN_KEPT)
    return str(kept) if kept else None


def show_run(key: str) -> None:
    """Make `key` the run of this tab and put it into the URL."""
    if st.session_state.get(_RUN_KEPT) not in (None, key):
        set_window(None)
    st.session_state[_RUN_KEPT] = key
    if st.query_params.get(_RUN) != key:
        st.query_params[_RUN] = key


def forget_run(*, deleted: str) -> None:
    """Show no run any more, since the one called `deleted` is gone; `take_deleted` tells of it once."""
    st.session_state.pop(_RUN_KEPT, None)
    st.session_state[_DELETED] = deleted
    st.query_params.clear()


def take_deleted() -> str | None:
    """Return what was deleted since somebody asked last."""
    name = st.session_state.pop(_DELETED, None)
    return str(name) if name else None


# ---------------------------------------------------------------- how often


def refresh_picker() -> None:
    """Show the choice of how often the page reads what was appended."""
    before = st.session_state.get("_refresh_before", "5 s")
    chosen = st.segmented_control(
        "Refresh",
        tuple(_SECONDS),
        default="5 s",
        required=True,
        key=_REFRESH,
        label_visibility="collapsed",
        persist_state="session",
        help="How often the page reads what the run has written since.",
    )
    if chosen != before:
        st.session_state["_refresh_before"] = chosen
        # The timers belong to the page, not to the region with the picker.
        st.rerun()


def refresh_seconds() -> float | None:
    """Return how often the page refreshes itself, or None for never."""
    return _SECONDS.get(str(st.session_state.get(_REFRESH, "5 s")), 5.0)


def is_read_in_part(run: str) -> bool:
    """Say whether the run's log has not been read to its end yet."""
    return bool(st.session_state.get(f"_reading {run}"))


def set_read_in_part(run: str, in_part: bool) -> bool:
    """Remember it, and say whether it changed."""
    changed = is_read_in_part(run) != in_part
    st.session_state[f"_reading {run}"] = in_part
    return changed


def is_examined_in_part(run: str) -> bool:
    """Say whether the detectors have not seen all of the run's records yet."""
    return bool(st.session_state.get(f"_examining {run}"))


def set_examined_in_part(run: str, in_part: bool) -> bool:
    """Remember it, and say whether it changed."""
    changed = is_examined_in_part(run) != in_part
    st.session_state[f"_examining {run}"] = in_part
    return changed


def set_live(run: str, live: bool) -> bool:
    """Remember whether the run is live, and say whether that changed since the page was drawn."""
    changed = bool(st.session_state.get(f"_live {run}", live) != live)
    st.session_state[f"_live {run}"] = live
    return changed


# ---------------------------------------------------------------- how charts are drawn


def axis_picker() -> XAxis:
    """Show the choice of what charts run along, and return it."""
    chosen = st.segmented_control(
        "Along",
        tuple(_AXES),
        default="Step",
        required=True,
        key="x",
        bind="query-params",
        on_change=set_window,
        args=(None,),
        label_visibility="collapsed",
    )
    return _AXES[str(chosen or "Step")]


def smoothing_picker() -> float:
    """Show the choice of how much of the past the average carries, and return it."""
    chosen = st.select_slider(
        "Smoothing",
        SMOOTHINGS,
        value=DEFAULT_SMOOTHING,
        key="ema",
        bind="query-params",
        format_func=lambda weight: "off" if weight == 0 else f"{weight:g}",
        help="A debiased exponential average over every logged point; the curve as logged stays behind it.",
    )
    return float(chosen)


def toggle(label: str, key: Literal["log", "clip"], help_text: str) -> bool:
    """Show one switch of the charts, and return it."""
    return st.toggle(label, key=key, bind="query-params", help=help_text)


def window() -> Window | None:
    """Return the part of the axis that the URL asks for, or None for all of it."""
    try:
        low, high = float(st.query_params[_FROM]), float(st.query_params[_TO])
    except (KeyError, ValueError):
        return None
    return (low, high) if low < high else None


def set_window(new: Window | None) -> None:
    """Look at this part of the axis, in every chart of the page; None for all of it."""
    if new is None:
        for name in (_FROM, _TO):
            if name in st.query_params:
                del st.query_params[name]
        return
    for name, edge in zip((_FROM, _TO), new, strict=True):
        # A step of a small model takes a few milliseconds, and its parts less.
        st.query_params[name] = f"{edge:.10g}" if abs(edge) < 1e9 else f"{edge:.6f}"


# ---------------------------------------------------------------- what was asked of runs


def asked(run: str) -> list[dict[str, Any]]:
    """Return what this tab asked of the run, newest first."""
    return list(st.session_state.get(_ASKED, {}).get(run, ()))


def remember_asked(run: str, request_id: str, what: str, at: float, *, about: str = "") -> None:
    """Remember a request, to show its answer when it comes; `about` is the alert that it was made against."""
    all_asked = st.session_state.setdefault(_ASKED, {})
    asked_now = {"id": request_id, "what": what, "at": at, "about": about}
    all_asked[run] = [asked_now, *all_asked.get(run, ())][:5]


def to_confirm(run: str) -> str | None:
    """Return the alert whose remedy waits for a second yes."""
    waiting = st.session_state.get(_CONFIRM)
    return str(waiting[1]) if waiting and waiting[0] == run else None


def set_to_confirm(run: str, alert_id: str | None) -> None:
    """Wait for a second yes to the remedy of this alert; None for no more."""
    st.session_state[_CONFIRM] = None if alert_id is None else (run, alert_id)


def take_untold(run: str, alert_ids: Iterable[str]) -> list[str]:
    """Return those of `alert_ids` that this tab has not been told of yet; from now on it has."""
    told: set[tuple[str, str]] = st.session_state.setdefault(_TOLD, set())
    new = [alert_id for alert_id in alert_ids if (run, alert_id) not in told]
    told.update((run, alert_id) for alert_id in new)
    return new
