"""Sends requests to a live run, and shows its answers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from toolkit.telemetry.runfolder.control import LOG_EVERY_HIGH, LOG_EVERY_LOW, LOG_EVERY_PAUSE_S, MAX_TEXT
from toolkit.telemetry.runfolder.records import CHECKPOINT, CONTROL_CHANGE, Record
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, LOST, STOPPED
from toolkit.telemetry.runfolder.untrusted import is_number, texts_in, whole_in
from toolkit.telemetry.runs.findings.remedies import knob_changes_text
from toolkit.telemetry.runs.formatting import ago, clean, md, short_number
from toolkit.telemetry.runs.store import NO_END, UNREADABLE, Refused, RunStore

from .. import session
from . import page_states

_ENDED: Final = {
    FINISHED: "has finished",
    FAILED: "has failed",
    STOPPED: "was stopped",
    LOST: "was lost",
    NO_END: "may have ended",
    UNREADABLE: "cannot be read",
}
_LOG_EVERY_WHAT: Final = "log every"
_MAX_ANSWERS: Final = 3
_WHILE_ASKED_S: Final = 2.0
_MAX_EXACT: Final = 2**53
_ACTIONS: Final = {
    "save": "Save",
    "sample": "Sample",
    "save_and_stop": "Save and stop",
    "stop": "Stop",
}
STOPS: Final = {
    "save_and_stop": "saves and then stops after the current step.",
    "stop": "stops after the current step **without saving**.",
}
"""What the actions that stop a run do, as Markdown."""


def control_box(store: RunStore, key: str) -> None:
    """Show the controls of a live run, or why it has none, and what it answered."""
    is_live = store.card(key).live
    if not is_live and not session.sent_requests(key):
        return
    if session.is_viewer():
        st.caption(session.read_only_reason() or "")
        return
    control, reason = declared_control(store, key), control_unavailable_reason(store, key)
    if reason is not None and is_live:
        st.caption(reason)
    if reason is None:
        _buttons(store, key, control)
        _log_every(store, key, control)
    # Below Apply, but drawn after the knobs: a click on one of them is a request, too.
    answers = st.container()
    if reason is None:
        _knobs(store, key, control)
    if control:
        is_asked = is_pending(store, key, session.sent_requests(key)[:_MAX_ANSWERS])
        with answers:
            # The run answers when it next checks its control file, so check a little more often than it does.
            st.fragment(
                lambda: page_states.guarded("The answers", lambda: _answers(store, key)),
                run_every=_WHILE_ASKED_S if is_asked else None,
            )()


def declared_control(store: RunStore, key: str) -> Mapping[str, Any]:
    """Return the controls that the run has declared."""
    manifest = store.meta(key).manifest
    return manifest.control if manifest is not None else {}


def control_unavailable_reason(store: RunStore, key: str) -> str | None:
    """Return why the run cannot be controlled now, safe to show as Markdown; None if it can."""
    card, control, meta = store.card(key), declared_control(store, key), store.meta(key)
    if card.logged_by is not None and meta.control_refusal is not None:
        return md(meta.control_refusal)
    if not card.live:
        return f"The run {_ENDED.get(card.status.name, 'has ended')} and cannot be controlled."
    if not control:
        return "Control is disabled for this run (`control: false` in its configuration)."
    read_only = session.read_only_reason()
    if read_only is not None:
        return read_only
    if meta.control_refusal is not None:
        return md(meta.control_refusal)
    if not meta.writable:
        return "The run's folder is not writable."
    return None


# ---------------------------------------------------------------- controls


def _log_every(store: RunStore, key: str, control: Mapping[str, Any]) -> None:
    now = whole_in(control.get("log_every_now")) or 10
    st.markdown(":small[Log every … steps]")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        # A browser does not send a number outside the limits of its box, so the old one would be sent.
        # So there are no limits, not even the implicit ones of an integer box.
        shown = st.number_input(
            "steps",
            value=float(now),
            step=5.0,
            format="%.0f",
            key=f"_log_every {key}",
            label_visibility="collapsed",
            help=f"{LOG_EVERY_LOW} to {LOG_EVERY_HIGH}; at most one change every {LOG_EVERY_PAUSE_S:g} s is applied.",
        )
        applied = st.button("Apply", key=f"_apply {key}", type="primary")
    # The value the box shows, not the stored one: its change may be reported after the click.
    steps = _as_shown(shown)
    if steps == now and not LOG_EVERY_LOW <= now <= LOG_EVERY_HIGH:
        if applied:
            st.caption("The run already logs this often. Nothing was sent.")
    elif _is_within("log every", steps, LOG_EVERY_LOW, LOG_EVERY_HIGH, is_submitted=applied) and applied:
        send_request(store, key, {"log_every": steps}, f"{_LOG_EVERY_WHAT} {steps}")


def _buttons(store: RunStore, key: str, control: Mapping[str, Any]) -> None:
    declared = [name for name in _ACTIONS if name in texts_in(control.get("actions"))]
    if not declared:
        return
    with st.container(horizontal=True):
        for name in declared:
            label = _ACTIONS[name]
            if name in STOPS:
                is_asked = is_confirmed(label, f"{md(store.card(key).name)} {STOPS[name]}", f"{name} {key}")
            else:
                is_asked = st.button(label, key=f"_{name} {key}")
            if is_asked:
                send_request(store, key, {"actions": (name,)}, label.lower())


def _knobs(store: RunStore, key: str, control: Mapping[str, Any]) -> None:
    knobs = control.get("knobs")
    if not isinstance(knobs, dict) or not knobs:
        return
    with st.expander("Knobs"):
        for name, about in list(knobs.items())[:20]:
            if isinstance(about, dict):
                # If one cannot be drawn, the others and the answers below still are.
                page_states.guarded(
                    str(name)[:60],
                    lambda name=name, about=about: _knob(store, key, str(name), about),  # type: ignore[misc]  # bound now
                )


def _knob(store: RunStore, key: str, name: str, about: Mapping[str, Any]) -> None:
    kind, value = about.get("type"), about.get("value")
    low, high = _bounds(about, kind)
    widget = f"_knob {key} {name}"
    bounds = f" :gray[{short_number(low)} to {short_number(high)}]" if None not in (low, high) else ""
    new: Any
    # A widget's own label is Markdown where it is drawn, if only unseen, and plain text where it is read aloud.
    st.markdown(f":small[{md(name, 60)}{bounds}]")
    label = re.sub(r"\W+|\b_+|_+\b", " ", name)[:60]
    with st.container(horizontal=True, vertical_alignment="center"):
        if kind == "bool":
            new = st.toggle(label, value=bool(value), key=widget, label_visibility="collapsed")
        elif kind in ("int", "float"):
            whole = kind == "int"
            new = st.number_input(
                label,
                value=float(_start(_number(value, kind), low, high, kind)),
                step=1.0 if whole else None,
                format="%.0f" if whole else "%.15g",
                key=widget,
                label_visibility="collapsed",
            )
            new = _as_shown(new) if whole else new
        else:
            text = clean(str(value or ""))[:MAX_TEXT]
            new = st.text_input(label, text, key=widget, label_visibility="collapsed")
        is_set = st.button("Set", key=f"{widget} set")
    if _is_within(name, new, low, high, is_submitted=is_set) and is_set:
        send_request(store, key, {"knobs": {name: new}}, f"{name} = {new}")


def _is_within(
    name: str, value: object, low: float | None, high: float | None, *, is_submitted: bool
) -> bool:
    """Return whether `value` is within the limits; if not, show why, and that nothing was sent."""
    if not isinstance(value, (int, float)):
        return True
    if (low is None or low <= value) and (high is None or value <= high):
        return True
    if low is None or high is None:
        allowed = f"at most {_exact(high)}" if high is not None else f"at least {_exact(low or 0)}"
    else:
        allowed = f"{_exact(low)} to {_exact(high)}"
    wrong = f"{md(name, 60)} {_exact(value)} is out of range: {allowed}."
    if is_submitted:
        st.error(f"{wrong} Nothing was sent.")
    else:
        st.caption(f":red[{wrong}]")
    return False


def _as_shown(value: float) -> int:
    """Return the integer that a box without decimals shows for `value`."""
    return math.floor(value + 0.5)


def _exact(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _bounds(about: Mapping[str, Any], kind: object) -> tuple[float | None, float | None]:
    """Return the bounds of a knob; invalid or contradicting ones are dropped."""
    low, high = _number(about.get("low"), kind), _number(about.get("high"), kind)
    return (None, None) if low is not None and high is not None and low > high else (low, high)


def _number(value: object, kind: object) -> float | None:
    """Return `value` as a number of this kind that JavaScript represents exactly; None if it is not one."""
    if not is_number(value) or not math.isfinite(value):
        return None
    if kind == "int":
        return int(value) if abs(value) < _MAX_EXACT else None
    return float(value)


def _start(value: float | None, low: float | None, high: float | None, kind: str) -> float:
    """Return the initial value of a knob, within its bounds."""
    if value is None:
        usual = 0 if kind == "int" else 1.0
        is_within = (low is None or low <= usual) and (high is None or usual <= high)
        value = usual if is_within or low is None else low
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def send_request(
    store: RunStore, key: str, request: Mapping[str, Any], what: str, *, about: str = ""
) -> bool:
    """Send a request and return whether that worked; an error is shown."""
    try:
        request_id = store.ask(key, request)
    except Refused as error:
        st.error(md(str(error)))
        return False
    session.remember_request(key, request_id, what, time.time(), about=about)
    st.toast(f"{md(what)}: sent to the run.")
    return True


def is_confirmed(label: str, text: str, key: str, **look: Any) -> bool:
    """Show a button that stops something after one more question, below `text`; return whether that was answered.

    Not a dialog: a refresh of the region would close it.
    """
    asking = f"_stop {key}"
    with st.popover(label, key=asking, on_change="rerun", **look):
        st.markdown(text)
        # It is closed once that is answered.
        return st.button(
            label, key=f"_yes_stop {key}", on_click=st.session_state.update, args=({asking: False},)
        )


# ---------------------------------------------------------------- answers


def _answers(store: RunStore, key: str) -> None:
    store.refresh(key, wait_s=0.2)
    manifest = store.meta(key).manifest
    every = manifest.control.get("log_every_now") if manifest is not None else None
    if every is not None:
        st.caption("Logs every step." if every == 1 else f"Logs every {md(str(every))} steps.")
    requests = session.sent_requests(key)[:_MAX_ANSWERS]
    _announce(store, key, requests)
    show_answers(store, key, requests)
    _earlier_answers(store, key, {request["id"] for request in requests})


def _announce(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> None:
    """Show a toast for each new answer: the box may be scrolled out of view."""
    answers = _answers_to(store, key, requests)
    new = session.take_unannounced(key, [request["id"] for request in requests if request["id"] in answers])
    for request in requests:
        if request["id"] in new:
            answer = answers[request["id"]]
            st.toast(f"{_sign(answer)} {md(request['what'])}: {describe(answer)}")


def _earlier_answers(store: RunStore, key: str, shown: Container[str]) -> None:
    """Show what the run answered to requests of other tabs, or of this one before it was reloaded."""
    newest = store.events(key, (CONTROL_CHANGE,), limit=50)
    earlier = [record for record in newest if str(record.get("id")) not in shown][:_MAX_ANSWERS]
    for record in earlier:
        sent_at = record.get("time")
        when = f" :gray[{ago(time.time() - sent_at)}]" if isinstance(sent_at, (int, float)) else ""
        text = f"{md(subject(record))}: {describe(record)}{_saved_to(store, key, record)}"
        st.markdown(f":small[{_sign(record)} {text}{when}]")


def show_answers(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> None:
    """Show the run's answer to each of `requests`, or that it is pending."""
    answers = _answers_to(store, key, requests)
    for request in requests:
        answer = answers.get(request["id"])
        if answer is None:
            sent = ago(time.time() - request["at"])
            card = store.card(key)
            state = md(store.delivery(key, request["id"]).text)
            if not card.live:
                state = f"no answer, the run is now {md(card.status.name)}"
            elif request["what"].startswith(_LOG_EVERY_WHAT) and (wait_s := _pause_left(store, key)) > 0:
                state = f"waits, {wait_s:.0f} s"
            st.markdown(f":gray[:small[{md(request['what'])}: {state}, sent {sent}]]")
        else:
            text = f"{md(request['what'])}: {describe(answer)}{_saved_to(store, key, answer)}"
            st.markdown(f":small[{_sign(answer)} {text}]")


def _pause_left(store: RunStore, key: str) -> float:
    """Return for how many seconds the run will not change its log interval again."""
    for record in store.events(key, (CONTROL_CHANGE,), limit=50):
        if record.get("setting") == "log_every" and _is_done(record):
            changed = record.get("time")
            if isinstance(changed, (int, float)):
                return min(LOG_EVERY_PAUSE_S, LOG_EVERY_PAUSE_S - (time.time() - changed))
    return 0.0


def _saved_to(store: RunStore, key: str, answer: Record) -> str:
    """Return, as Markdown, where the checkpoint is that this answer is about; empty if none was recorded."""
    if not _is_done(answer) or not {"save", "save_and_stop"} & set(texts_in(answer.get("actions"))):
        return ""
    for record in store.events(key, (CHECKPOINT,), limit=20):
        path = record.get("checkpoint_path")
        if isinstance(path, str) and record.get("global_step") == answer.get("global_step"):
            return f" to {md(path, 200)}"
    return ""


def is_pending(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the run may still answer one of `requests`."""
    answers = _answers_to(store, key, requests)
    unanswered = [request["id"] for request in requests if request["id"] not in answers]
    return store.card(key).live and not all(store.delivery(key, each).is_over for each in unanswered)


def _answers_to(store: RunStore, key: str, requests: Sequence[Mapping[str, Any]]) -> dict[str, Record]:
    if not requests:
        return {}
    return {str(record.get("id")): record for record in store.events(key, (CONTROL_CHANGE,), limit=50)}


def _is_done(answer: Record) -> bool:
    return answer.get("status") in ("applied", "clamped")


def _sign(answer: Record) -> str:
    return ":green[✓]" if _is_done(answer) else ":orange[✕]"


def describe(answer: Record) -> str:
    """Return a run's answer as text, safe to show as Markdown."""
    status = md(str(answer.get("status", "answered")))
    parts = [status]
    step = answer.get("global_step")
    if _is_done(answer) and isinstance(step, int):
        parts.append(f"at step {step:,}")
    if answer.get("old") is not None and answer.get("new") is not None:
        parts.append(f"({md(str(answer['old']))} → {md(str(answer['new']))})")
    if answer.get("reason"):
        parts.append(f"– {md(str(answer['reason']))}")  # noqa: RUF001 - a dash between two thoughts
    return " ".join(parts)


def subject(answer: Record) -> str:
    """Return what an answer is about, as plain text."""
    return str(
        answer.get("setting")
        or ", ".join(texts_in(answer.get("actions")))
        or knob_changes_text(answer)
        or "request"
    )
