"""The state of one browser tab: every session-state key and URL parameter, each by a typed function."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from toolkit.telemetry.core.user_folders import labels_dir
from toolkit.telemetry.runs.formatting import md
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.sources.team_stores import TeamStores
from toolkit.telemetry.runs.store import RunStore

from .access.roles import Role, role_named
from .charts.packing import Window
from .settings import DashboardSettings, EngineSettings

REFRESHES: Final = {"Off": None, "2 s": 2.0, "5 s": 5.0, "30 s": 30.0}
Smoothing = float | Literal["auto"]
"""Half the width of a centred average as a fraction of the visible x range; 0 for none."""
SMOOTHINGS: Final[dict[str, Smoothing]] = {
    "auto": "auto",
    "off": 0.0,
    "1%": 0.01,
    "2%": 0.02,
    "5%": 0.05,
    "10%": 0.1,
    "20%": 0.2,
}
_T = TypeVar("_T")

_RUN = "run"
_RUN_KEPT = "_run"
_OF_CURVES: Final = ("from", "to")
OF_SPANS: Final = ("since", "until")
"""Where the URL has the window of the spans: next to curves of the whole run they show a few steps."""
_AT = "at"
_REFRESH = "refresh"
_REQUESTS = "_asked"
_ANNOUNCED = "_announced"
_UNDO = "_undo_offer"
_UNDO_S: Final = 60.0


@st.cache_resource(show_spinner=False, hash_funcs={DashboardSettings: hash})
def _store(chosen: DashboardSettings, labels: str | None) -> RunStore:
    # Streamlit runs the garbage collector after every region; freezing keeps it from scanning pandas and pyarrow.
    gc.collect()
    gc.freeze()
    if chosen.engines:
        stores: dict[str, RunStore] = {
            one.team: _engine_store(one, chosen.read_only) for one in chosen.engines
        }
        return TeamStores(stores) if len(stores) > 1 else stores[chosen.engines[0].team]
    # The reason is evaluated at each change, in the tab that makes it: one store serves visitors of all roles.
    return LocalStore(
        chosen.log_dirs,
        cache_dir=chosen.cache_dir,
        labels_dir=None if labels is None else Path(labels),
        other_tools=chosen.other_tools,
        read_only=chosen.read_only,
        read_only_reason=_viewer_reason,
    )


def _engine_store(engine: EngineSettings, read_only: bool) -> RunStore:
    # Imported here: a dashboard of folders opens a tenth of a second sooner without them.
    from toolkit.telemetry.fleet.address import address_of
    from toolkit.telemetry.fleet.stores import store_at
    from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

    return ClickHouseStore(
        address_of(engine.url, password_file=engine.password_file, ca=engine.ca),
        read_only=read_only,
        read_only_reason=_viewer_reason,
        visitor=_visitor,
        objects=None if engine.objects is None else store_at(engine.objects, tries=1),
    )


def settings() -> DashboardSettings:
    """Return what the dashboard was started with."""
    return DashboardSettings.in_use or DashboardSettings()


def role() -> Role | None:
    """Return the role of this tab's visitor; None without access.

    Nothing here comes from the page in the browser: it is fixed when the tab connects, by a gate in front or by
    a cookie that the server signed.
    """
    access = settings().access
    if access.by == "anyone":
        return Role.OPERATOR
    if get_script_run_ctx(suppress_warning=True) is None:
        # A first screen is made before there is a tab, and changes nothing.
        return None
    if access.by == "token":
        return role_named(st.user.get("role"))
    if access.by == "header":
        return Role.OPERATOR if st.user.get("email") else None
    return access.allow_list.role_of(st.user.to_dict()) if access.allow_list is not None else None


def is_viewer() -> bool:
    """Return whether this tab's visitor has no operator rights and is shown no controls."""
    return role() is not Role.OPERATOR


def read_only_reason() -> str | None:
    """Return why this tab is read-only, as a sentence; None if it is not."""
    if settings().read_only:
        return "The dashboard was started with `--read-only`."
    reason = _viewer_reason()
    return None if reason is None else f"{reason[0].upper()}{reason[1:]}."


def _viewer_reason() -> str | None:
    if not is_viewer():
        return None
    by_login = settings().access.by == "login"
    return "your account has read-only access" if by_login else "this link gives read-only access"


def _visitor() -> str:
    """Return who this tab's visitor is, as far as that is known."""
    return str(st.user.get("email") or st.user.get("sub") or "dashboard")


def store() -> RunStore:
    """Return the run store of this process."""
    labels = labels_dir()
    return _store(settings(), None if labels is None else str(labels))


# ---------------------------------------------------------------- which run


def current_run() -> str | None:
    """Return the run in the URL, or the one this tab showed last."""
    named = st.query_params.get(_RUN)
    if named:
        st.session_state[_RUN_KEPT] = named
        return str(named)
    kept = st.session_state.get(_RUN_KEPT)
    return str(kept) if kept else None


def show_run(key: str) -> None:
    """Make `key` the run of this tab, and of the URL if that has one; else the head of the page puts it there."""
    if st.session_state.get(_RUN_KEPT) not in (None, key):
        set_window(None)
        set_window(None, OF_SPANS)
    st.session_state[_RUN_KEPT] = key
    if st.query_params.get(_RUN, key) != key:
        st.query_params[_RUN] = key


def forget_run() -> None:
    """Show no run, because the one shown is gone."""
    st.session_state.pop(_RUN_KEPT, None)
    st.query_params.clear()


@dataclass(frozen=True, slots=True)
class Undo:
    """The last archiving or deletion of this tab: what to say, and the runs by their tokens in the trash."""

    text: str
    is_deletion: bool
    done: tuple[tuple[str, str], ...]
    """Token and key of each run."""
    at: float


def offer_undo(text: str, done: Sequence[tuple[str, str]], *, is_deletion: bool) -> None:
    """Let the Runs page offer to undo this for a minute; `text` is Markdown."""
    st.session_state[_UNDO] = Undo(text, is_deletion, tuple(done), time.time())


def undo_offered() -> Undo | None:
    """Return what can be undone now."""
    last: Undo | None = st.session_state.get(_UNDO)
    return last if last is not None and time.time() - last.at <= _UNDO_S else None


def forget_undo() -> None:
    """Offer no undo any more."""
    st.session_state.pop(_UNDO, None)


# ---------------------------------------------------------------- how often


def refresh_seconds() -> float | None:
    """Return the refresh interval, or None for never."""
    return REFRESHES[refresh_chosen()]


def refresh_chosen() -> str:
    """Return the name of the refresh interval of this tab."""
    return str(st.session_state.get(_REFRESH, "5 s"))


def choose_refresh(name: object) -> None:
    """Refresh the pages of this tab as often as the interval of this name says."""
    if name in REFRESHES:
        st.session_state[_REFRESH] = name


Reading = Literal["read", "examined"]


def is_partly(how: Reading, run: str) -> bool:
    """Return whether the run's log has not been read, or examined by the detectors, to its end yet."""
    return bool(st.session_state.get(f"_partly_{how} {run}"))


def set_partly(how: Reading, run: str, in_part: bool) -> bool:
    """Store it, and return whether it changed."""
    st.session_state.setdefault(f"_partly_{how} {run}", False)
    return is_changed(f"_partly_{how} {run}", in_part)


def is_changed(name: str, value: object) -> bool:
    """Store a value, and return whether it is another one than when the page was drawn."""
    changed = bool(st.session_state.get(name, value) != value)
    st.session_state[name] = value
    return changed


# ---------------------------------------------------------------- how charts are drawn


def kept_in_url(
    widget: Callable[..., Any], label: str, options: Sequence[Any], *, key: str, **more: Any
) -> Any:
    """Show a widget with `options`, kept in the URL under `key`, and return what it returns.

    The URL has what `format_func` makes of an option, so that must never change, such as with a count.
    """
    known = {str(more.get("format_func", str)(option)) for option in options}
    unknown = [text for text in st.query_params.get_all(key) if text and text not in known]
    if unknown:
        # Streamlit removes it from the URL.
        named = ", ".join(f"“{md(text, 60)}”" for text in unknown[:5])
        what = f"The link asks for {named} under {label}, which is not here. It was left out."
        st.toast(what, duration="infinite")
    return widget(label, options, key=key, bind="query-params", **more)


def pick_one(label: str, options: Sequence[_T], *, default: _T, key: str, **more: Any) -> _T:
    """Show options in a row, kept in the URL under `key`, and return the chosen one."""
    how: dict[str, Any] = {"default": default, "required": True, "label_visibility": "collapsed", **more}
    chosen: _T | None = kept_in_url(st.segmented_control, label, options, key=key, **how)
    return default if chosen is None else chosen


def pick_or_none(
    label: str, options: Sequence[str], *, key: str, placeholder: str, **more: Any
) -> str | None:
    """Show a select box that is empty at first, kept in the URL under `key`, and return what was chosen."""
    how: dict[str, Any] = {"placeholder": placeholder, "label_visibility": "collapsed", **more}
    chosen = kept_in_url(st.selectbox, label, options, index=None, key=key, **how)
    return str(chosen) if chosen else None


def window(names: tuple[str, str] = _OF_CURVES) -> Window | None:
    """Return the x-axis range in the URL, or None for all of it."""
    try:
        low, high = (float(st.query_params[name]) for name in names)
    except (KeyError, ValueError):
        return None
    return (low, high) if -math.inf < low < high < math.inf else None


def set_window(new: Window | None, names: tuple[str, str] = _OF_CURVES) -> None:
    """Set the x-axis range of every chart on the page; None for all of it."""
    # A step of a small model takes milliseconds, and its spans less.
    edges = [f"{edge:.10g}" if abs(edge) < 1e9 else f"{edge:.6f}" for edge in new or ()]
    put_in_url(dict(zip(names, edges or (None, None), strict=True)))


def put_in_url(values: Mapping[str, str | Sequence[str] | None]) -> None:
    """Put values into the URL, all as one entry of the browser's history; None removes one, and is an entry each."""
    for name, value in values.items():
        if value is None:
            st.query_params.pop(name, None)
    if new := {name: value for name, value in values.items() if value is not None}:
        st.query_params.update(new)


def sample_step() -> int | None:
    """Return the step of the samples in the URL; None for the newest."""
    try:
        return int(st.query_params[_AT])
    except (KeyError, ValueError):
        return None


def set_sample_step(step: int | None) -> None:
    """Put the step of the samples that are shown into the URL; None for the newest, which a link then follows."""
    put_in_url({_AT: None if step is None else str(step)})


# ---------------------------------------------------------------- requests sent to runs


def sent_requests(run: str) -> list[dict[str, Any]]:
    """Return the requests this tab sent to the run, newest first."""
    return list(st.session_state.get(_REQUESTS, {}).get(run, ()))


def remember_request(run: str, request_id: str, what: str, at: float, *, about: str = "") -> None:
    """Store a request, to show its answer later; `about` is the alert that it is for."""
    requests = st.session_state.setdefault(_REQUESTS, {})
    new = {"id": request_id, "what": what, "at": at, "about": about}
    requests[run] = [new, *requests.get(run, ())][:5]


def take_unannounced(run: str, alert_ids: Iterable[str]) -> list[str]:
    """Return those of `alert_ids` that this tab has not announced yet, and mark them as announced."""
    announced: set[tuple[str, str]] = st.session_state.setdefault(_ANNOUNCED, set())
    new = [alert_id for alert_id in alert_ids if (run, alert_id) not in announced]
    announced.update((run, alert_id) for alert_id in new)
    return new
