"""The frame of every run page: which run, how it is doing, how far it is, what reading it showed."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.control_box import control_box
from dashboard.components.run_menu import run_menu
from dashboard.data.alerts import Alert, alerts_of, news_in
from dashboard.data.run_store import STARTING, UNREADABLE, Health, RunCard, RunList, RunStore, UnknownRun
from dashboard.data.formatting import ago, clean, clock, count, duration, md, short_number, size
from toolkit.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, STOPPED

Tone = Literal["green", "orange", "red", "blue", "gray"]

BADGES: Final[dict[str, tuple[str, str, Tone]]] = {
    RUNNING: ("Running", ":material/play_circle:", "green"),
    STARTING: ("Starting", ":material/pending:", "gray"),
    STALLED: ("Stalled", ":material/hourglass_top:", "orange"),
    FINISHED: ("Finished", ":material/check_circle:", "blue"),
    STOPPED: ("Stopped", ":material/stop_circle:", "blue"),
    FAILED: ("Failed", ":material/error:", "red"),
    LOST: ("Lost", ":material/help:", "red"),
    UNREADABLE: ("Unreadable", ":material/block:", "red"),
}
GLYPHS: Final[dict[str, str]] = {
    RUNNING: "● Running",
    STARTING: "◌ Starting",
    STALLED: "▲ Stalled",
    FINISHED: "■ Finished",
    STOPPED: "■ Stopped",
    FAILED: "✕ Failed",
    LOST: "✕ Lost",
    UNREADABLE: "✕ Unreadable",
}
"""For tables, which are drawn on a canvas: text glyphs only, since not every machine has a font with more."""

_STEPS_FOR_ETA: Final = 200
_SECONDS_WHILE_READING: Final = 1.0
_SECONDS_WHEN_NOT_LIVE: Final = 30.0
_FIRST_LOOK_S: Final = 0.05
"""For the detectors before anything is drawn: enough for some thousand records, and nobody notices it."""
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunPage:
    """The run that a page shows."""

    key: str
    store: RunStore

    @property
    def card(self) -> RunCard:
        """The run as a list shows it, now."""
        return self.store.card(self.key)


def open_run(*, with_worst: bool = True) -> RunPage | None:
    """Draw the frame for the run of this tab and return it; None when there is none, which has then been said.

    `with_worst` shows the worst alert, with the way to the page that has them all.
    """
    store = session.store()
    key = session.current_run()
    runs = store.list_runs()
    if not runs.cards:
        page_states.no_runs(runs.roots)
        return None
    if key is None:
        # The navigation is named after the run, and was drawn before anybody knew which.
        newest = next((card for card in runs.cards if not card.archived), runs.cards[0])
        session.show_run(newest.key)
        st.rerun()
    try:
        # As far as its records have been read, like the header: two opinions would chase each other.
        card = store.card(key)
    except UnknownRun as error:
        page_states.unknown_run(error, lambda near: _link_to_run(near, runs.find(near)))
        return None
    if runs.find(key) is None:
        # One of very many, which is listed from now on.
        runs = store.list_runs()
    session.show_run(key)
    session.set_live(key, card.live)
    page = RunPage(key, store)
    session.set_examined_in_part(key, store.examine(key, wait_s=_FIRST_LOOK_S) < 1.0)
    with st.sidebar:
        _run_picker(page, runs)
        page_states.guarded("The control box", lambda: control_box(store, key))
    title, actions = st.columns([0.66, 0.34], vertical_alignment="center")
    with title:
        # Somebody may resume a run that ended: the header keeps an eye on that, and the rest follows.
        live(page, "The header", lambda: _title(page), idle_s=_SECONDS_WHEN_NOT_LIVE)
    with actions, st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        # Outside what refreshes itself: a dialog that somebody types into would be closed by a refresh.
        session.refresh_picker()
        run_menu(store, card)
    live(page, "The progress", lambda: _progress_and_trouble(page))
    live(page, "The alerts in short", _alert_strip(page, is_shown=with_worst), until_examined=True)
    if card.status.name == UNREADABLE and not store.refresh(key, wait_s=0.0).records:
        # A manifest alone that is broken leaves the records to be shown.
        _unreadable(card)
        return None
    return page


def live(
    page: RunPage,
    name: str,
    draw: Callable[[], None],
    *,
    idle_s: float | None = None,
    until_examined: bool = False,
) -> None:
    """Draw a region that refreshes itself while the run is live, and every `idle_s` seconds while it is not.

    One that shows what the detectors find says `until_examined`: it comes back until they have seen all records.
    `draw` shows no widget that somebody types into.
    """
    seconds = session.refresh_seconds()
    if seconds is not None and not page.card.live:
        seconds = idle_s
    if session.is_read_in_part(page.key) or (until_examined and session.is_examined_in_part(page.key)):
        seconds = _SECONDS_WHILE_READING
    st.fragment(lambda: page_states.guarded(name, draw), run_every=seconds)()


def read(page: RunPage, *, wait_s: float = 1.5) -> Health:
    """Read what was appended, and remember whether there is more, so that the page comes back for it."""
    health = page.store.refresh(page.key, wait_s=wait_s)
    if session.set_read_in_part(page.key, not health.complete):
        # The regions' timers depend on it: a finished run has one only until its log is read.
        st.rerun()
    return health


def footer(page: RunPage, drawn: int, total: int) -> None:
    """Say how much there is, and how much of it is drawn."""
    health = page.store.refresh(page.key, wait_s=0.0)
    st.caption(
        f"{count(health.records)} records · {size(health.bytes_read)} · "
        f"drawn {count(drawn)} of {count(total)} points · lowest and highest of every bucket kept"
    )


# ---------------------------------------------------------------- header


def _title(page: RunPage) -> None:
    read(page)
    card = page.card
    if session.set_live(page.key, card.live):
        # A run that ended needs no timers, and nobody is there to be asked any more.
        st.rerun()
    st.set_page_config(page_title=_tab_title(card))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.subheader(md(card.name, 80), anchor=False, width="content")
        _status_badge(card)
        for tag in card.tags[:6]:
            # Not st.badge: it puts a backslash before brackets, also before those that have one.
            st.markdown(f":gray-badge[{md(tag, 30)}]", width="content")
    st.caption(_about(card))


def _progress_and_trouble(page: RunPage) -> None:
    health = read(page)
    card = page.card
    _progress(page, card)
    if not health.complete:
        page_states.reading(health)
    if card.status.name != UNREADABLE or health.records:
        page_states.health_strip(health)
    if card.problem and card.status.name != UNREADABLE:
        st.warning(md(card.problem), icon=":material/warning:")


def _status_badge(card: RunCard) -> None:
    """Show how a run is doing: icon, word and colour, and on hover how that is known."""
    word, icon, tone = BADGES.get(card.status.name, (card.status.name, ":material/help:", "gray"))
    if card.status.name == STALLED and card.last_sign is not None:
        word += f" {duration(time.time() - card.last_sign)}"
    if card.archived:
        word += " · archived"
    how = "known" if card.status.sure else "judged by the age of its last sign of life alone"
    st.badge(md(word), icon=icon, color=tone, help=f"{md(card.status.why)} ({how})")


def _tab_title(card: RunCard) -> str:
    done = f" {card.progress:.0%}" if card.progress is not None else ""
    mark = GLYPHS.get(card.status.name, "●").split(" ", 1)[0]
    return f"{mark}{done} {card.name[:60]}"


def _about(card: RunCard) -> str:
    parts = []
    if card.last_sign is not None:
        parts.append(f"last sign of life {ago(time.time() - card.last_sign)}")
    if card.status.name not in (RUNNING, STARTING):
        parts.append(md(card.status.why) + ("" if card.status.sure else " (a guess by age)"))
    if card.host:
        parts.append(f"on {md(card.host)}")
    if card.sessions > 1:
        parts.append(f"{card.sessions} sessions")
    if card.duration_s is not None:
        parts.append(f"elapsed {duration(card.duration_s)}")
    if card.created is not None:
        parts.append(f"started {clock(card.created, now=time.time())}")
    return " · ".join(parts)


def _progress(page: RunPage, card: RunCard) -> None:
    if card.step is None or card.steps_done is None:
        return
    seconds = step_seconds(page)
    words = [f"**step {count(card.step)}**"]
    if card.max_steps and card.progress is not None:
        words[0] = f"**step {count(card.steps_done)} / {count(card.max_steps)}**"
        words.append(f"{card.progress:.0%}")
    if card.epoch is not None:
        words.append(f"epoch {short_number(card.epoch)}")
    if seconds:
        words.append(f"{short_number(1 / seconds)} steps/s")
    left = (card.max_steps - card.steps_done) if card.max_steps else 0
    if card.status.name == RUNNING and seconds and left > 0:
        eta = left * seconds
        words.append(f"**ETA {duration(eta)}** (about {clock(time.time() + eta, now=time.time())[:-3]})")
    line = " · ".join(words)
    if card.progress is None:
        st.markdown(line)
    else:
        st.progress(card.progress, text=line)


def step_seconds(page: RunPage) -> float | None:
    """Return the median time a step took lately: pauses to save or evaluate do not count."""
    recent = page.store.recent(page.key, "sec_per_step", _STEPS_FOR_ETA)
    recent = recent[np.isfinite(recent) & (recent > 0)]
    return float(np.median(recent)) if len(recent) else None


def _alert_strip(page: RunPage, *, is_shown: bool) -> Callable[[], None]:
    """Return what draws the worst that goes on, and has the detectors look at what was appended."""
    is_first = True

    def draw() -> None:
        nonlocal is_first
        # The curves come first: what takes longer than a moment is examined once they stand there.
        if not is_first and not session.is_read_in_part(page.key):
            part = page.store.examine(page.key, wait_s=_LOOK_S)
            if session.set_examined_in_part(page.key, part < 1.0):
                # The regions' timers depend on it.
                st.rerun()
        is_first = False
        alerts = news_in(alerts_of(page.store, page.key), page.store.meta(page.key).labels)
        _tell_once(page, alerts)
        if is_shown:
            _worst(page, alerts)

    return draw


def _worst(page: RunPage, alerts: Sequence[Alert]) -> None:
    counts = Counter(alert.severity for alert in alerts)
    if not counts["critical"] and not counts["warning"]:
        return
    worst = alerts[0]
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        if counts["critical"]:
            st.badge(f"{counts['critical']} critical", icon=":material/error:", color="red")
        if counts["warning"]:
            plural = "s" if counts["warning"] > 1 else ""
            st.badge(f"{counts['warning']} warning{plural}", icon=":material/warning:", color="orange")
        st.markdown(f"**{md(worst.title, 60)}** {md(worst.message, 200)}", width="content")
        st.page_link(
            "views/alerts.py",
            label="What to try",
            icon=":material/arrow_forward:",
            icon_position="right",
            query_params={"run": page.key},
        )


def _tell_once(page: RunPage, alerts: Sequence[Alert]) -> None:
    """Say aloud what is new and critical in a run that is live; what an old run had stands on its page."""
    critical = {alert.id: alert for alert in alerts if alert.severity == "critical"}
    new = session.take_untold(page.key, critical) if page.card.live else []
    if new:
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        worst = critical[new[0]]
        st.toast(
            f"**{md(worst.title, 60)}**{more} {md(worst.message, 200)}",
            icon=":material/error:",
            duration="long",
        )


# ---------------------------------------------------------------- sidebar and faults


def _run_picker(page: RunPage, runs: RunList) -> None:
    names = {
        card.key: f"{card.name}  ·  {card.status.name}"
        for card in runs.cards
        if not card.archived or card.key == page.key
    }
    keys = list(names)
    chosen = st.selectbox(
        "Run",
        keys,
        index=keys.index(page.key),
        format_func=lambda key: names.get(key, key),
        key=f"_picker {page.key}",
    )
    if chosen is not None and chosen != page.key:
        session.show_run(chosen)
        st.rerun()


def _link_to_run(key: str, card: RunCard | None) -> None:
    if st.button(md(card.name if card else key), key=f"_near {key}", type="tertiary"):
        session.show_run(key)
        st.rerun()


def _unreadable(card: RunCard) -> None:
    with st.container(border=True):
        st.subheader("This run's folder cannot be read", anchor=False)
        st.code(clean(f"{card.folder}\n{card.problem or card.status.why}"), language=None)
        if not os.access(card.folder, os.R_OK | os.X_OK):
            st.caption("If the folder is yours, this opens it again:")
            st.code(f"chmod -R u+rwX {shlex.quote(clean(str(card.folder)))}", language="bash")
