"""The frame of every run page: run picker, status, progress, alerts and read errors."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.control_box import control_box
from dashboard.components.page_states import page_title, section
from dashboard.components.run_menu import run_menu
from dashboard.components.script import show_component
from toolkit.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, STOPPED
from toolkit.runs.findings.alerts import Alert, alerts_of, unseen_alerts
from toolkit.runs.formatting import ago, clean, clock, count, duration, md, short_number, size
from toolkit.runs.store import (
    NO_END,
    STARTING,
    STILL_LOOKING,
    UNREADABLE,
    Health,
    RunCard,
    RunList,
    RunQuery,
    RunStore,
    UnknownRun,
    labelled,
)

Tone = Literal["green", "orange", "red", "blue", "gray"]

BADGES: Final[dict[str, tuple[str, str, Tone]]] = {
    RUNNING: ("Running", ":material/play_circle:", "green"),
    STARTING: ("Starting", ":material/pending:", "gray"),
    STALLED: ("Stalled", ":material/hourglass_top:", "orange"),
    FINISHED: ("Finished", ":material/check_circle:", "blue"),
    STOPPED: ("Stopped", ":material/stop_circle:", "blue"),
    FAILED: ("Failed", ":material/error:", "red"),
    LOST: ("Lost", ":material/help:", "red"),
    NO_END: ("No end written", ":material/help:", "gray"),
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
    NO_END: "◌ No end",
    UNREADABLE: "✕ Unreadable",
}
"""For tables, which are drawn on a canvas: glyphs that every font has."""

_OFFERED: Final = 500
"""Runs that can be picked on the page of a run."""
_STEPS_FOR_ETA: Final = 200
_SECONDS_WHILE_READING: Final = 1.0
_SECONDS_WHEN_NOT_LIVE: Final = 30.0
_FIRST_READ_S: Final = 0.3
"""Enough for a small run; a large one is shown as far as it has been read."""
_MOST_BEFORE_FIRST_S: Final = 3.0
_FIRST_EXAMINE_S: Final = 0.15
"""For the detectors before anything is drawn: enough for a few thousand records, too short to notice."""
_EXAMINE_S: Final = 0.5


@dataclass(slots=True)
class RunPage:
    """The run that a page shows."""

    key: str
    store: RunStore
    is_refreshing: bool = False
    """Whether a region is drawn again, not the page for the first time."""

    @property
    def card(self) -> RunCard:
        """The run's current card."""
        return self.store.card(self.key)


def open_run(*, show_worst: bool = True) -> RunPage | None:
    """Draw the frame of this tab's run, with its worst alert if `show_worst`, and return it; None without a run."""
    store = session.store()
    key = session.current_run()
    runs = store.list_runs(RunQuery(per_page=_OFFERED))
    if not runs.cards and STILL_LOOKING in runs.problems:
        page_states.still_looking(runs.places)
        st.fragment(_wait_for_runs, run_every=_SECONDS_WHILE_READING)()
        return None
    if not runs.cards:
        page_states.no_runs(runs.places, runs.problems)
        return None
    if key is None:
        # The navigation shows the run's name, and was drawn before it was known.
        newest = next((card for card in runs.cards if not card.archived), runs.cards[0])
        session.show_run(newest.key)
        st.rerun()
    try:
        # From the records read so far, like the header; otherwise the two could disagree and rerun forever.
        card = store.card(key)
    except UnknownRun as error:
        cards = labelled(runs.cards)
        page_states.unknown_run(error, lambda near: _link_to_run(near, cards.get(near)))
        return None
    if card.key != key:
        # The URL has a name that fits only one run.
        session.show_run(card.key)
        st.rerun()
    session.show_run(key)
    session.set_live(key, card.live)
    page = RunPage(key, store)
    # Before anything is drawn: the timers depend on it.
    session.set_partly_read(key, _is_partly_read(_read_first(store, key)))
    session.set_partly_examined(key, store.examine(key, wait_s=_FIRST_EXAMINE_S) < 1.0)
    with st.sidebar:
        _run_picker(card, runs)
        page_states.guarded("The control box", lambda: control_box(store, key))
    title, actions = st.columns([0.66, 0.34], vertical_alignment="center")
    with title:
        # A run that ended may be resumed: the header checks for that.
        live(page, "The header", lambda: _title(page), idle_s=_SECONDS_WHEN_NOT_LIVE)
    with actions, st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        # Outside the refreshing regions: a refresh would close an open dialog.
        if card.live:
            session.refresh_picker()
        run_menu(store, card)
    live(page, "The progress", lambda: _progress_and_problems(page))
    live(page, "The alert summary", _alert_strip(page, is_shown=show_worst), until_examined=True)
    if card.status.name == UNREADABLE and not store.refresh(key, wait_s=0.0).records:
        # With only the manifest broken, the records are still shown.
        _unreadable(card)
        return None
    return page


def _wait_for_runs() -> None:
    if STILL_LOOKING not in session.store().list_runs(RunQuery(per_page=0)).problems:
        st.rerun()


def live(
    page: RunPage,
    name: str,
    draw: Callable[[], None],
    *,
    idle_s: float | None = None,
    until_examined: bool = False,
    slower: int = 1,
) -> None:
    """Draw a region that refreshes itself while the run is live, and every `idle_s` seconds otherwise.

    With `slower` it refreshes only every so many times.

    With `until_examined` it also refreshes until the detectors have seen all records.
    `draw` must not contain text inputs.
    """
    seconds = session.refresh_seconds()
    if seconds is not None:
        seconds = seconds * slower if page.card.live else idle_s
    if session.is_partly_read(page.key) or (until_examined and session.is_partly_examined(page.key)):
        seconds = _SECONDS_WHILE_READING
    is_first = True

    def draw_region() -> None:
        nonlocal is_first
        page.is_refreshing, is_first = not is_first, False
        page_states.guarded(name, draw)

    st.fragment(draw_region, run_every=seconds)()


def read(page: RunPage, *, wait_s: float = 1.5) -> Health:
    """Read new records, and remember whether there are more, so that the page refreshes again."""
    if not page.is_refreshing:
        # The page has just read for as long as it should; the next refresh reads on.
        return page.store.refresh(page.key, wait_s=0.0)
    health = page.store.refresh(page.key, wait_s=wait_s)
    if session.set_partly_read(page.key, _is_partly_read(health)):
        # The timers depend on it: a finished run needs one only until its log is read.
        st.rerun()
    return health


def _read_first(store: RunStore, key: str) -> Health:
    """Read for a moment; longer only if that gave nothing to draw."""
    until = time.monotonic() + _MOST_BEFORE_FIRST_S
    health = store.refresh(key, wait_s=_FIRST_READ_S)
    while not health.complete and not health.records and time.monotonic() < until:
        health = store.refresh(key, wait_s=_FIRST_READ_S)
    return health


def _is_partly_read(health: Health) -> bool:
    return not health.complete or health.is_stale


def footer(page: RunPage, drawn: int, total: int) -> None:
    """Show how many records there are and how many points are drawn."""
    health = page.store.refresh(page.key, wait_s=0.0)
    st.caption(
        f"{count(health.records)} records · {size(health.bytes_read)} · "
        f"{count(drawn)} of {count(total)} points drawn, keeping the minimum and maximum of every bucket"
    )


# ---------------------------------------------------------------- header


def _title(page: RunPage) -> None:
    read(page)
    card = page.card
    if session.set_live(page.key, card.live):
        # A run that ended needs no timers and no controls.
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        page_title(md(card.name, 80), width="content")
        _status_badge(card)
        for source in filter(None, (card.team, card.logged_by)):
            st.markdown(f":violet-badge[{md(source, 40)}]", width="content")
        for tag in card.tags[:6]:
            # Not st.badge: it escapes brackets, even escaped ones.
            st.markdown(f":gray-badge[{md(tag, 30)}]", width="content")
    st.caption(_about(card))


def _progress_and_problems(page: RunPage) -> None:
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
    """Show the run's status, with the reason on hover."""
    word, icon, tone = BADGES.get(card.status.name, (card.status.name, ":material/help:", "gray"))
    if card.status.name == STALLED and card.last_sign is not None:
        word += f" {duration(time.time() - card.last_sign)}"
    if card.archived:
        word += " · archived"
    how = "" if card.status.sure else " (estimated from the time of the last update)"
    st.badge(md(word), icon=icon, color=tone, help=f"{md(card.status.why)}{how}")


def _about(card: RunCard) -> str:
    parts = []
    if card.last_sign is not None:
        parts.append(f"last update {ago(time.time() - card.last_sign)}")
    if card.status.name not in (RUNNING, STARTING):
        parts.append(md(card.status.why) + ("" if card.status.sure else " (estimated)"))
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
        # The page's style reserves the height of what has this key.
        with st.container(key="progress"):
            st.progress(card.progress, text=line)


def step_seconds(page: RunPage) -> float | None:
    """Return the median time of recent steps: pauses to save or evaluate do not count."""
    recent = page.store.recent(page.key, "sec_per_step", _STEPS_FOR_ETA)
    recent = recent[np.isfinite(recent) & (recent > 0)]
    return float(np.median(recent)) if len(recent) else None


def _alert_strip(page: RunPage, *, is_shown: bool) -> Callable[[], None]:
    """Return a function that runs the detectors on new records and draws the worst open alert."""
    is_first = True

    def draw() -> None:
        nonlocal is_first
        # Charts first: the detectors take longer, so they run from the second drawing on.
        if not is_first and not session.is_partly_read(page.key):
            part = page.store.examine(page.key, wait_s=_EXAMINE_S)
            if session.set_partly_examined(page.key, part < 1.0):
                # The timers depend on it.
                st.rerun()
        is_first = False
        alerts = unseen_alerts(alerts_of(page.store, page.key), page.store.meta(page.key).labels)
        card = page.card
        is_critical = any(alert.severity == "critical" for alert in alerts)
        st.set_page_config(
            page_title=tab_title(card, GLYPHS.get(card.status.name, "●").split(" ", 1)[0], alerts),
            page_icon=CRITICAL_ICON if is_critical else ICON,
        )
        attention(page.key, card, alerts)
        _announce_once(page, alerts)
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


def _announce_once(page: RunPage, alerts: Sequence[Alert]) -> None:
    """Show a toast for new critical alerts of a live run."""
    critical = {alert.id: alert for alert in alerts if alert.severity == "critical"}
    new = session.take_unannounced(page.key, critical) if page.card.live else []
    if new:
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        worst = critical[new[0]]
        st.toast(
            f"**{md(worst.title, 60)}**{more} {md(worst.message, 200)}",
            icon=":material/error:",
            duration="long",
        )


# ---------------------------------------------------------------- sidebar and errors


def _run_picker(current: RunCard, runs: RunList) -> None:
    cards = {card.key: card for card in runs.cards if not card.archived} | {current.key: current}
    names = {card.key: f"{card.name}  ·  {card.status.name}" for card in labelled(cards.values()).values()}
    keys = list(names)
    is_cut = runs.matching > len(runs.cards)
    chosen = st.selectbox(
        "Run",
        keys,
        index=keys.index(current.key),
        format_func=lambda key: names.get(key, key),
        key=f"_picker {current.key}",
        help=f"The {_OFFERED:,} runs that were updated last; the Runs page has the others."
        if is_cut
        else None,
    )
    if chosen is not None and chosen != current.key:
        session.show_run(chosen)
        st.rerun()


def _link_to_run(key: str, card: RunCard | None) -> None:
    if st.button(md(card.name if card else key), key=f"_near {key}", type="tertiary"):
        session.show_run(key)
        st.rerun()


def _unreadable(card: RunCard) -> None:
    with st.container(border=True):
        section("This run cannot be read")
        st.code(clean(f"{card.place}\n{card.problem or card.status.why}"), language=None)
        if card.path is not None and not os.access(card.path, os.R_OK | os.X_OK):
            st.caption("If you own the folder, this restores access:")
            st.code(f"chmod -R u+rwX {shlex.quote(clean(str(card.path)))}", language="bash")


# ---------------------------------------------------------------- alerts for a person who is elsewhere


_ICONS: Final = Path(__file__).parents[1]
ICON: Final = str(_ICONS / "icon.png")
CRITICAL_ICON: Final = str(_ICONS / "icon_critical.png")
"""With a red dot."""

_MAX_TEXT: Final = 200


def tab_title(card: RunCard, glyph: str, alerts: Sequence[Alert]) -> str:
    """Return the title of the browser's tab: the worst critical alert, or the run's state."""
    done = f"{card.progress:.0%} " if card.progress is not None else ""
    worst = next((alert for alert in alerts if alert.severity == "critical"), None)
    if worst is None:
        return f"{glyph} {done}{card.name[:60]}"
    return f"⛔ {worst.title[:40]} · {done}{card.name[:60]}"


def attention(key: str, card: RunCard, alerts: Sequence[Alert]) -> None:
    """Announce open alerts that were neither seen nor muted: a count in the navigation, a live region, a notification.

    A notification only if the visitor has asked for it, see `notification_choice`.
    """
    shown = [alert for alert in alerts if alert.severity in ("critical", "warning")]
    worst = shown[0] if shown else None
    is_critical = worst is not None and worst.severity == "critical"
    text = f"{worst.title}. {worst.message}" if worst is not None else ""
    show_component(
        "attention",
        '<div class="telemetry-live" role="status" aria-live="polite"></div>',
        data={
            "count": len(shown),
            "critical": is_critical,
            "say": clean(f"{'Critical' if is_critical else 'Warning'}: {text}"[:_MAX_TEXT]) if text else "",
            "about": f"{key} {worst.id} {worst.kind}"[:_MAX_TEXT] if worst is not None else "",
            "title": clean(f"{worst.title} · {card.name}"[:_MAX_TEXT]) if worst is not None else "",
            "message": clean(worst.message[:_MAX_TEXT]) if worst is not None else "",
            "live": card.live,
        },
        key=f"_attention {key}",
    )


def notification_choice() -> None:
    """Show the button that turns on notifications of the browser: off until it is clicked, kept in the browser."""
    show_component("notification_choice", '<div class="telemetry-notify"></div>', data={}, key="_notify")
