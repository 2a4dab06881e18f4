"""The live runs of a sweep that can be stopped: why, what that saves, and buttons that ask them to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

import streamlit as st

from toolkit.telemetry.forecasts.stopping import Judged, Stopping
from toolkit.telemetry.forecasts.sweep import saved_text, stopping_of, stopping_text
from toolkit.telemetry.runfolder.metrics import Direction
from toolkit.telemetry.runfolder.untrusted import texts_in
from toolkit.telemetry.runs.formatting import count, md
from toolkit.telemetry.runs.store import RunCard, RunStore

from .. import session
from . import page_states
from .control_box import (
    control_unavailable_reason,
    declared_control,
    is_confirmed,
    is_pending,
    send_request,
    show_answers,
)
from .page_states import section

_NAME: Final = "What can be stopped"
_ABOUT: Final = "sweep"
_MOST: Final = 20
_WHILE_ASKED_S: Final = 2.0


def stopping_list(store: RunStore, cards: Iterable[RunCard], metric: str, direction: Direction) -> None:
    """Draw which live runs can be stopped; nothing without a live run."""
    chosen = list(cards)
    if any(card.live for card in chosen):
        page_states.guarded(_NAME, lambda: _region(store, chosen, metric, direction))


def _region(store: RunStore, chosen: Sequence[RunCard], metric: str, direction: Direction) -> None:
    found = stopping_of(store, chosen, metric=metric, direction=direction)
    asked = [card.key for card in chosen if _requests(card.key)]
    waits = any(is_pending(store, key, _requests(key)) for key in asked)
    st.fragment(
        lambda: page_states.guarded(_NAME, lambda: _draw(store, found)),
        run_every=_WHILE_ASKED_S if waits else None,
    )()


def _draw(store: RunStore, found: Stopping) -> None:
    head, _, rest = stopping_text(found).partition(". ")
    refused = [(run, _refusal(store, run.key)) for run in found.stoppable]
    free = [run.key for run, why in refused if not why and not _requests(run.key)]
    kept = [run for run in found.runs if not run.can_stop]
    with st.container(border=True):
        section(md(head.rstrip(".")), level=3)
        if rest:
            st.markdown(md(rest))
        # What holds for all is said once.
        of_all = refused[0][1] if len({why for _, why in refused}) == 1 else ""
        for run, why in refused[:_MOST]:
            _row(store, run, "" if of_all else why, can_ask=run.key in free)
        if of_all:
            st.caption(of_all)
        if len(refused) > _MOST:
            st.caption(f"{count(len(refused) - _MOST)} more: `telemetry forecast --stopping` lists them.")
        if len(free) > 1:
            _button(store, free, f"Stop all {count(len(free))}")
        if kept:
            with st.expander(f"Why {count(len(kept))} {'goes' if len(kept) == 1 else 'go'} on"):
                more = [f"{count(len(kept) - _MOST)} more."] if len(kept) > _MOST else []
                for line in [*(f"{_link(run)}: {md(run.why, 300)}" for run in kept[:_MOST]), *more]:
                    st.markdown(line)


def _row(store: RunStore, run: Judged, why: str, *, can_ask: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"{_link(run)}: {md(run.why, 300)} Saves {saved_text(run)}.", width="stretch")
        if can_ask:
            _button(store, [run.key], "Stop")
    if requests := _requests(run.key):
        store.refresh(run.key, wait_s=0.2)
        show_answers(store, run.key, requests)
    elif why:
        st.caption(why)


def _button(store: RunStore, keys: Sequence[str], label: str) -> None:
    actions = {key: _action(store, key) for key in keys}
    unsaved = sum(action == "stop" for action in actions.values())
    how = "**without saving**" if unsaved == len(keys) else "after saving"
    if 0 < unsaved < len(keys):
        how += f" ({count(unsaved)} **without saving**)"
    # The runs are part of the name: what was asked of two is not answered for a third that came meanwhile.
    if is_confirmed(label, f"Stops after the current step, {how}.", " ".join(keys)):
        requests = {key: {"actions": (action,)} for key, action in actions.items()}
        sent = [send_request(store, key, requests[key], "stop", about=_ABOUT) for key in requests]
        if all(sent):
            st.rerun()


def _refusal(store: RunStore, key: str) -> str:
    """Return why the run cannot be asked to stop, as Markdown; empty if it can."""
    reason = control_unavailable_reason(store, key)
    return (reason or "") if reason or _action(store, key) else "The script takes no request to stop."


def _action(store: RunStore, key: str) -> str:
    declared = texts_in(declared_control(store, key).get("actions"))
    return next((name for name in ("save_and_stop", "stop") if name in declared), "")


def _requests(key: str) -> list[dict[str, object]]:
    return [request for request in session.sent_requests(key) if request["about"] == _ABOUT][:1]


def _link(run: Judged) -> str:
    return f"[{md(run.name, 80)}](overview?run={quote(run.key, safe='')})"
