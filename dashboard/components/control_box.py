"""Asking the run for something, and showing what it answered."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.data.remedies import turned
from dashboard.data.run_store import Refused, RunStore
from dashboard.data.formatting import ago, clean, md, short_number
from toolkit.runfolder.control import LOG_EVERY_HIGH, LOG_EVERY_LOW, MAX_TEXT
from toolkit.runfolder.records import CONTROL_CHANGE, Record

_NOTCHES: Final = (5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_MOST_COUNTED: Final = 2**53
_ACTIONS: Final[dict[str, tuple[str, str]]] = {
    "save": ("Save", ":material/save:"),
    "sample": ("Sample", ":material/image:"),
    "save_and_stop": ("Save and stop", ":material/save:"),
    "stop": ("Stop", ":material/stop_circle:"),
}


def control_box(store: RunStore, key: str) -> None:
    """Show what can be asked of the run; switched off, with the reason, where nobody would answer."""
    st.divider()
    st.markdown("**Control**")
    if session.only_looks():
        st.caption(session.why_only_look() or "")
        return
    control = declared_control(store, key)
    reason = why_not(store, key)
    if reason:
        st.caption(reason)
    off = reason is not None
    _log_every(store, key, control, off)
    _buttons(store, key, control, off)
    _knobs(store, key, control, off)
    if control:
        # The answer comes within the run's next look at its control file, so this looks a little more often.
        st.fragment(
            lambda: page_states.guarded("The answers", lambda: _answers(store, key)),
            run_every=2.0 if not off else None,
        )()


def declared_control(store: RunStore, key: str) -> Mapping[str, Any]:
    """Return what the run says that it can be asked for."""
    manifest = store.meta(key).manifest
    return manifest.control if manifest is not None else {}


def why_not(store: RunStore, key: str) -> str | None:
    """Return why nothing can be asked of the run now, safe to show as Markdown; None where it can."""
    card, control, writable = store.card(key), declared_control(store, key), store.meta(key).writable
    if not card.live:
        return f"The run is {md(card.status.name)}: there is nobody to answer."
    if not control:
        return "This run takes no requests (`control: false` in its configuration)."
    only_look = session.why_only_look()
    if only_look is not None:
        return only_look
    if not writable:
        return "The run's folder cannot be written to from here."
    return None


# ---------------------------------------------------------------- what can be asked


def _log_every(store: RunStore, key: str, control: Mapping[str, Any], off: bool) -> None:
    now = control.get("log_every_now")
    now = now if isinstance(now, int) and not isinstance(now, bool) else 10
    kept_key = f"_log_every {key}"
    kept = st.session_state.setdefault(
        kept_key, {"value": min(LOG_EVERY_HIGH, max(LOG_EVERY_LOW, now)), "dragged": 0, "typed": 0}
    )
    # Whichever of the two is used, the other begins anew under a new name. Set by hand instead, it would still
    # stand at its old value in the browser, and a click on Apply at that moment would send that as a change.
    slider_key, number_key = f"{kept_key} slider {kept['typed']}", f"{kept_key} number {kept['dragged']}"

    def keep(widget: str, how: str) -> None:
        before = st.session_state[kept_key]
        other = "typed" if how == "dragged" else "dragged"
        # A click that comes while the page still works on the other one brings along what this one stood at under its
        # name from before, which is nobody's wish.
        if before[other] == kept[other]:
            st.session_state[kept_key] = {
                **before,
                "value": _as_shown(st.session_state[widget]),
                how: before[how] + 1,
            }

    st.select_slider(
        "Log every … steps",
        _NOTCHES,
        # Not by way of the session: a browser that misses the first of two quick drawings would begin at 5.
        value=_nearest(kept["value"]),
        key=slider_key,
        on_change=keep,
        args=(slider_key, "dragged"),
        disabled=off,
        help=f"The run takes {LOG_EVERY_LOW} to {LOG_EVERY_HIGH}, and changes at most every 30 s.",
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        # A browser keeps a number outside of a box's limits to itself, and the old one would be sent.
        # So there are none, not even those that a box for whole numbers has by itself.
        shown = st.number_input(
            "steps",
            value=float(kept["value"]),
            step=5.0,
            format="%.0f",
            key=number_key,
            on_change=keep,
            args=(number_key, "typed"),
            disabled=off,
            label_visibility="collapsed",
        )
        applied = st.button("Apply", key=f"_apply {key}", disabled=off, type="primary")
    # What the box shows, and not what was kept of it: its change may be reported after the click.
    steps = _as_shown(shown)
    if _is_within("log every", steps, LOG_EVERY_LOW, LOG_EVERY_HIGH, is_asked=applied) and applied:
        ask(store, key, {"log_every": steps}, f"log every {steps}")


def _buttons(store: RunStore, key: str, control: Mapping[str, Any], off: bool) -> None:
    declared = [name for name in _ACTIONS if name in _texts(control.get("actions"))]
    if not declared:
        return
    with st.container(horizontal=True):
        for name in declared:
            word, icon = _ACTIONS[name]
            if st.button(word, icon=icon, key=f"_{name} {key}", disabled=off):
                if name in ("stop", "save_and_stop"):
                    _confirm_stop(store, key, name)
                else:
                    ask(store, key, {"actions": (name,)}, word.lower())


@st.dialog("Stop this run?")
def _confirm_stop(store: RunStore, key: str, action: str) -> None:
    card = store.card(key)
    st.markdown(
        f"**{md(card.name)}** ends after the step it is in"
        + (", and saves first." if action == "save_and_stop" else " **without saving**.")
    )
    st.caption("A checkpoint that was written before stays. A stopped run can be resumed if its script can.")
    with st.container(horizontal=True):
        asked = st.button(_ACTIONS[action][0], type="primary", key="_yes_stop")
        # A refusal stays in sight.
        if asked and ask(store, key, {"actions": (action,)}, _ACTIONS[action][0].lower()):
            st.rerun()
        if st.button("Let it run", key="_no_stop"):
            st.rerun()


def _knobs(store: RunStore, key: str, control: Mapping[str, Any], off: bool) -> None:
    knobs = control.get("knobs")
    if not isinstance(knobs, dict) or not knobs:
        return
    with st.expander("Knobs"):
        for name, about in list(knobs.items())[:20]:
            if isinstance(about, dict):
                # One that cannot be drawn leaves the others, and the answers below.
                page_states.guarded(
                    str(name)[:60],
                    lambda name=name, about=about: _knob(store, key, str(name), about, off),  # type: ignore[misc]  # bound now
                )


def _knob(store: RunStore, key: str, name: str, about: Mapping[str, Any], off: bool) -> None:
    kind, value = about.get("type"), about.get("value")
    low, high = _bounds(about, kind)
    label = md(name, 60)
    widget = f"_knob {key} {name}"
    bounds = f"{short_number(low)} to {short_number(high)}" if low is not None and high is not None else None
    new: Any
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if kind == "bool":
            new = st.toggle(label, value=bool(value), key=widget, disabled=off)
        elif kind in ("int", "float"):
            whole = kind == "int"
            new = st.number_input(
                label,
                value=float(_start(_number(value, kind), low, high, kind)),
                step=1.0 if whole else None,
                format="%.0f" if whole else "%.15g",
                key=widget,
                disabled=off,
                help=bounds,
            )
            new = _as_shown(new) if whole else new
        else:
            new = st.text_input(label, clean(str(value or ""))[:MAX_TEXT], key=widget, disabled=off)
        is_set = st.button("Set", key=f"{widget} set", disabled=off)
    if _is_within(name, new, low, high, is_asked=is_set) and is_set:
        ask(store, key, {"knobs": {name: new}}, f"{name} = {new}")


def _is_within(name: str, value: object, low: float | None, high: float | None, *, is_asked: bool) -> bool:
    """Say whether the run takes `value`; where it does not, say so on the page, and that nothing was sent."""
    if not isinstance(value, (int, float)):
        return True
    if (low is None or low <= value) and (high is None or value <= high):
        return True
    if low is None or high is None:
        takes = f"at most {_exact(high)}" if high is not None else f"at least {_exact(low or 0)}"
    else:
        takes = f"{_exact(low)} to {_exact(high)}"
    wrong = f"{md(name, 60)} {_exact(value)}: the run takes {takes}."
    if is_asked:
        st.error(f"{wrong} Nothing was sent.")
    else:
        st.caption(f":red[{wrong}]")
    return False


def _as_shown(value: float) -> int:
    """Return the whole number that a box without digits behind the point shows for `value`."""
    return math.floor(value + 0.5)


def _exact(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _bounds(about: Mapping[str, Any], kind: object) -> tuple[float | None, float | None]:
    """Return from where to where a knob turns; a bound that is no number, or beyond the other, is none."""
    low, high = _number(about.get("low"), kind), _number(about.get("high"), kind)
    return (None, None) if low is not None and high is not None and low > high else (low, high)


def _number(value: object, kind: object) -> float | None:
    """Return `value` as a number of this kind that a browser counts exactly; None where it is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    if kind == "int":
        return int(value) if abs(value) < _MOST_COUNTED else None
    return float(value)


def _start(value: float | None, low: float | None, high: float | None, kind: str) -> float:
    """Return where a knob stands at first: at its value, as far as its bounds allow that."""
    if value is None:
        usual = 0 if kind == "int" else 1.0
        is_within = (low is None or low <= usual) and (high is None or usual <= high)
        value = usual if is_within or low is None else low
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def ask(store: RunStore, key: str, request: Mapping[str, Any], what: str, *, about: str = "") -> bool:
    """Write a request, remember it for its answer, and say whether that worked; a refusal is shown."""
    try:
        request_id = store.ask(key, request)
    except Refused as error:
        st.error(md(str(error)))
        return False
    session.remember_asked(key, request_id, what, time.time(), about=about)
    return True


# ---------------------------------------------------------------- what was answered


def _answers(store: RunStore, key: str) -> None:
    store.refresh(key, wait_s=0.2)
    manifest = store.meta(key).manifest
    if manifest is not None and manifest.control.get("log_every_now") is not None:
        st.caption(f"Logs every {md(str(manifest.control['log_every_now']))} steps now.")
    show_answers(store, key, session.asked(key)[:3])


def show_answers(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> None:
    """Show what the run has answered to each of `requests`, or that it has not yet."""
    answers = _answers_to(store, key, requests)
    for request in requests:
        answer = answers.get(request["id"])
        if answer is None:
            asked = ago(time.time() - request["at"])
            card = store.card(key)
            state = "pending" if card.live else f"no answer, and the run is {md(card.status.name)} now"
            st.markdown(f":gray[:small[:material/schedule: {md(request['what'])}: {state}, asked {asked}]]")
        else:
            st.markdown(f":small[{_icon(answer)} {md(request['what'])}: {describe(answer)}]")


def is_waiting(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether the run may still answer one of `requests`."""
    answers = _answers_to(store, key, requests)
    return any(request["id"] not in answers for request in requests) and store.card(key).live


def _answers_to(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> dict[str, Record]:
    if not requests:
        return {}
    return {str(record.get("id")): record for record in store.events(key, (CONTROL_CHANGE,), limit=50)}


def _icon(answer: Record) -> str:
    good = answer.get("status") in ("applied", "clamped")
    return ":green[:material/check_circle:]" if good else ":orange[:material/block:]"


def describe(answer: Record) -> str:
    """Return a run's answer in words, safe to show as Markdown."""
    status = md(str(answer.get("status", "answered")))
    parts = [status]
    step = answer.get("global_step")
    if answer.get("status") in ("applied", "clamped") and isinstance(step, int):
        parts.append(f"at step {step:,}")
    if answer.get("old") is not None and answer.get("new") is not None:
        parts.append(f"({md(str(answer['old']))} → {md(str(answer['new']))})")
    if answer.get("reason"):
        parts.append(f"– {md(str(answer['reason']))}")  # noqa: RUF001 - a dash between two thoughts
    return " ".join(parts)


def subject(answer: Record) -> str:
    """Return what a run answered to, as plain text."""
    return str(
        answer.get("setting") or ", ".join(_texts(answer.get("actions"))) or turned(answer) or "request"
    )


def _nearest(value: int) -> int:
    return min(_NOTCHES, key=lambda notch: abs(notch - value))


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, (list, tuple)) else []
