"""The frame of every run page: run picker, status, progress, alerts and read errors."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

import numpy as np
import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.forecasts.run import end_of_run, last_step
from toolkit.telemetry.reports.svg import text_html
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, FINDING
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, STOPPED
from toolkit.telemetry.runs.findings.alerts import alerts_of, unseen_alerts
from toolkit.telemetry.runs.formatting import ago, clean, clock, count, duration, md, short_number
from toolkit.telemetry.runs.store import (
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

from .. import session
from . import page_states
from .control_box import control_box, declared_control
from .page_states import section
from .run_menu import run_menu
from .run_select import option_texts
from .script import show_component

Tone = Literal["green", "orange", "red", "blue", "gray", "violet"]

BADGES: Final[dict[str, tuple[str, Tone, str]]] = {
    RUNNING: ("Running", "green", "●"),
    STARTING: ("Starting", "gray", "◌"),
    STALLED: ("Stalled", "orange", "▲"),
    FINISHED: ("Finished", "blue", "■"),
    STOPPED: ("Stopped", "blue", "■"),
    FAILED: ("Failed", "red", "✕"),
    LOST: ("Lost", "red", "✕"),
    NO_END: ("No end written", "gray", "◌"),
    UNREADABLE: ("Unreadable", "red", "✕"),
}
"""Word, colour and sign of each status: a sign that every font has."""


def badge_of(card: RunCard) -> tuple[str, Tone, str]:
    """Return word, colour and sign of a run's status."""
    return BADGES.get(card.status.name, (card.status.name, "gray", "●"))


def status_text(card: RunCard) -> str:
    """Return a run's status as a cell of a table has it."""
    word, _, sign = badge_of(card)
    return clean(f"{sign} {word.removesuffix(' written')}")


OFFERED: Final = 500
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


def has_rest(card: RunCard) -> bool:
    """Return whether a run may be forecast: it is live, or was stopped before its planned end."""
    last = last_step(card)
    if card.status.name in (FINISHED, STARTING, UNREADABLE):
        return False
    return card.live if last is None else card.step is not None and card.step < last


DrawnFrom: TypeAlias = Callable[[RunPage, Sequence[Finding]], object]


def open_run(
    *,
    show_worst: bool = True,
    summary: Callable[[RunPage], str] | None = None,
    drawn_from: DrawnFrom | None = None,
) -> RunPage | None:
    """Draw the frame of this tab's run, with its worst alert if `show_worst`, and return it; None without a run.

    `summary` returns HTML made from escaped text, for below the head, of a page that is about metrics. The page is
    drawn again when what `drawn_from` returns has changed, such as the set of metrics.
    """
    store = session.store()
    key = session.current_run()
    runs = store.list_runs(RunQuery(per_page=OFFERED))
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
        if is_deleted(card):
            raise UnknownRun(key, ())
    except UnknownRun as error:
        cards = labelled(runs.cards)
        page_states.unknown_run(error, lambda near: _link_to_run(near, cards.get(near)))
        return None
    if card.key != key:
        # The URL has a name that fits only one run.
        session.show_run(card.key)
        st.rerun()
    session.show_run(key)
    page = RunPage(key, store)
    # Before anything is drawn: the timers depend on it.
    session.set_partly("read", key, _is_partly_read(_read_first(store, key)))
    session.set_partly("examined", key, store.examine(key, wait_s=_FIRST_EXAMINE_S) < 1.0)
    with st.sidebar:
        _run_picker(card, runs)
        page_states.guarded("The control box", lambda: control_box(store, key))
    is_unreadable = card.status.name == UNREADABLE and not store.refresh(key, wait_s=0.0).records
    # With only the manifest broken, the records are still shown. A run that ended may be resumed: the head checks that.
    head = _Head(
        page, show_worst=show_worst, summary=None if is_unreadable else summary, drawn_from=drawn_from
    )
    with st.container(key="head", gap="small"):
        live(page, "The header", head.draw, idle_s=_SECONDS_WHEN_NOT_LIVE, until_examined=True)
        if not card.live:
            # Drawing the head costs more than this look.
            st.fragment(lambda: _redraw_if_deleted(card), run_every=session.refresh_seconds())()
        with st.container(key="run_menu"):
            # Outside the refreshing region: a refresh would close an open dialog.
            run_menu(store, card)
    if is_unreadable:
        _unreadable(card)
        return None
    return page


def _redraw_if_deleted(card: RunCard) -> None:
    if is_deleted(card):
        st.rerun()


def is_deleted(card: RunCard) -> bool:
    """Return whether the folder of a run is gone."""
    # The path of another tool's run may be a place inside of a file.
    if card.path is None or card.logged_by is not None:
        return False
    try:
        return card.path.stat() is None
    except FileNotFoundError:
        return True
    except OSError:
        # A file system that does not answer has deleted nothing.
        return False


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
    if session.is_partly("read", page.key) or (until_examined and session.is_partly("examined", page.key)):
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
    if session.set_partly("read", page.key, _is_partly_read(health)):
        # The timers depend on it: a finished run needs one only until its log is read.
        st.rerun()
    return health


def _read_first(store: RunStore, key: str) -> Health:
    """Read for a short time; longer only if that gave nothing to draw."""
    until = time.monotonic() + _MOST_BEFORE_FIRST_S
    health = store.refresh(key, wait_s=_FIRST_READ_S)
    while not health.complete and not health.records and time.monotonic() < until:
        health = store.refresh(key, wait_s=_FIRST_READ_S)
    return health


def _is_partly_read(health: Health) -> bool:
    return not health.complete or health.is_stale


# ---------------------------------------------------------------- head


def curves_from(page: RunPage, alerts: Sequence[Finding]) -> object:
    """Return what charts of curves consist of, besides the values: the metrics and the marks."""
    return (
        tuple(info.name for info in page.store.metrics(page.key)),
        len(page.store.sessions(page.key)),
        tuple((alert.id, alert.is_open) for alert in alerts if alert.event == FINDING),
    )


class _Head:
    """Everything about the run that changes while it is live, in one region: each message restyles the page."""

    def __init__(
        self,
        page: RunPage,
        *,
        show_worst: bool,
        summary: Callable[[RunPage], str] | None,
        drawn_from: DrawnFrom | None,
    ) -> None:
        self._page, self._show_worst, self._summary, self._drawn_from = page, show_worst, summary, drawn_from
        self._alerts: list[Finding] = []
        self._examined = 1.0
        self._drawn_with: object = None
        self._tab: tuple[str, str] | None = None

    def draw(self) -> None:
        page = self._page
        health = read(page)
        page_states.guarded("The alerts", self._examine)
        page_states.guarded("The run's state", self._redraw_if_changed)
        card = page.card
        unseen = unseen_alerts(self._alerts, page.store.meta(page.key).labels)
        # In one component: each message of a refresh costs.
        below = [worst_html(page.key, unseen)] if self._show_worst else []
        page_states.guarded("The summary", lambda: below.append(self._summary(page) if self._summary else ""))
        page_states.guarded("The name of the run", lambda: _name_and_progress(page, card, unseen, below))
        _problems(card, health)
        if self._examined < 1.0:
            st.progress(self._examined, text=f"Examined {self._examined:.0%} of the records so far")
        self._name_tab(card, unseen)
        _announce_once(page, unseen)
        if self._summary is not None and not page.store.metrics(page.key):
            page_states.no_metrics(card, health)

    def _examine(self) -> None:
        page = self._page
        # Charts first: the detectors take longer, so they run from the second drawing on.
        is_time = page.is_refreshing and not session.is_partly("read", page.key)
        self._examined = page.store.examine(page.key, wait_s=_EXAMINE_S if is_time else 0.0)
        if is_time and session.set_partly("examined", page.key, self._examined < 1.0):
            # The timers depend on it.
            st.rerun()
        self._alerts = alerts_of(page.store, page.key)

    def _redraw_if_changed(self) -> None:
        """Draw the whole page again if something has changed that is drawn outside this region."""
        page = self._page
        card, counts = page.card, page.store.count_events(page.key)
        _redraw_if_deleted(card)
        # A run that ended needs no timers and no controls; the sidebar shows what it answered.
        every = declared_control(page.store, page.key).get("log_every_now")
        now: tuple[object, ...] = (card.status.name, counts.get(CONTROL_CHANGE, 0), every)
        if self._drawn_from is not None:
            now += (self._drawn_from(page, self._alerts),)
        if page.is_refreshing and now != self._drawn_with:
            st.rerun()
        self._drawn_with = now

    def _name_tab(self, card: RunCard, unseen: Sequence[Finding]) -> None:
        is_critical = any(alert.severity == "critical" for alert in unseen)
        tab = (tab_title(card, badge_of(card)[2], unseen), CRITICAL_ICON if is_critical else ICON)
        if tab != self._tab:
            self._tab = tab
            st.set_page_config(page_title=tab[0], page_icon=tab[1])


def _name_and_progress(page: RunPage, card: RunCard, unseen: Sequence[Finding], below: Sequence[str]) -> None:
    show_component(
        "run_head",
        '<div class="telemetry-markup"></div><div class="telemetry-live" role="status" aria-live="polite"></div>',
        data={
            "run": page.key,
            "html": head_html(page, card) + "".join(below),
            "at": time.time(),
            "attention": _attention(page.key, card, unseen),
        },
        key=f"_head {page.key}",
    )


def head_html(page: RunPage, card: RunCard) -> str:
    """Return name, status and progress of a run as HTML made from escaped text."""
    word, tone, sign = badge_of(card)
    if card.status.name == STALLED and card.last_sign is not None:
        word += f" {duration(time.time() - card.last_sign)}"
    if card.archived:
        word += " · archived"
    how = "" if card.status.sure else " (estimated from the time of the last update)"
    badges = [(f"{sign} {word}", tone, card.status.why + how)]
    badges += [(source[:40], "violet", "") for source in filter(None, (card.team, card.logged_by))]
    badges += [(tag[:30], "gray", "") for tag in card.tags[:6]]
    line = f"<h1>{text_html(card.name, 80)}</h1>" + "".join(
        f'<span class="telemetry-badge telemetry-badge-{color}"'
        + (f' title="{text_html(hint, 400)}"' if hint else "")
        + f">{text_html(text)}</span>"
        for text, color, hint in badges
    )
    steps = " · ".join(
        f"<{name}>{text_html(text)}</{name}>"
        for text, is_strong in _steps(page, card)
        for name in ("strong" if is_strong else "span",)
    )
    line += f'<span class="telemetry-head-steps">{steps}</span>' if steps else ""
    bar = ""
    if card.progress is not None:
        done = f"{100 * card.progress:.4g}"
        bar = (
            '<div class="telemetry-head-bar" role="progressbar" aria-label="Progress of the run" '
            f'aria-valuenow="{float(done):.0f}"><span style="width:{done}%"></span></div>'
        )
    clock_html = '<span class="telemetry-head-clock">updated just now</span>' if card.live else ""
    about = text_html(_about(card), 400)
    if about:
        about = f'<span class="telemetry-head-more">{" · " if clock_html else ""}{about}</span>'
    return (
        f'<div class="telemetry-head"><div class="telemetry-head-line">{line}</div>{bar}'
        f'<div class="telemetry-head-about">{clock_html}{about}</div></div>'
    )


def _problems(card: RunCard, health: Health) -> None:
    if not health.complete:
        page_states.reading(health)
    if card.status.name != UNREADABLE or health.records:
        page_states.health_strip(health)
    if card.problem and card.status.name != UNREADABLE:
        st.warning(md(card.problem))


def _about(card: RunCard) -> str:
    parts = []
    if card.status.name not in (RUNNING, STARTING):
        if card.last_sign is not None:
            parts.append(f"last update {ago(time.time() - card.last_sign)}")
        parts.append(card.status.why + ("" if card.status.sure else " (estimated)"))
    if card.host:
        parts.append(f"on {card.host}")
    if card.sessions > 1:
        parts.append(f"{card.sessions} sessions")
    if card.duration_s is not None:
        parts.append(f"elapsed {duration(card.duration_s)}")
    if card.created is not None:
        parts.append(f"started {clock(card.created, now=time.time())}")
    return " · ".join(parts)


def _steps(page: RunPage, card: RunCard) -> list[tuple[str, bool]]:
    """Return how far the run is, in parts; some are emphasized."""
    if card.step is None or card.steps_done is None:
        return []
    seconds = step_seconds(page)
    of = f" / {count(card.max_steps)}" if card.max_steps and card.progress is not None else ""
    words = [(f"step {count(card.steps_done if of else card.step)}{of}", True)]
    if of and card.progress is not None:
        words.append((f"{card.progress:.0%}", False))
    if card.epoch is not None:
        words.append((f"epoch {short_number(card.epoch)}", False))
    if seconds:
        rate = 1 / seconds
        words.append((f"{short_number(rate) if rate < 1e6 else f'{rate / 1e6:.4g} M'} steps/s", False))
    now = time.time()
    ends = end_of_run(page.store, card, now) if card.status.name == RUNNING else None
    if ends is not None:
        words += [
            (f"ETA {duration(ends.middle - now)}", True),
            (f"about {clock(ends.middle, now=now)[:-3]}", False),
        ]
    return words


def step_seconds(page: RunPage) -> float | None:
    """Return the median time of recent steps: pauses to save or evaluate do not count."""
    recent = page.store.recent(page.key, "sec_per_step", _STEPS_FOR_ETA)
    recent = recent[np.isfinite(recent) & (recent > 0)]
    return float(np.median(recent)) if len(recent) else None


def worst_html(key: str, alerts: Sequence[Finding]) -> str:
    """Return how many alerts are open, and the worst, as a link made from escaped text; empty without any."""
    counts = Counter(alert.severity for alert in alerts)
    badges = []
    if counts["critical"]:
        badges.append(
            f'<span class="telemetry-badge telemetry-badge-red">✕ {counts["critical"]} critical</span>'
        )
    if counts["warning"]:
        text = f"▲ {counts['warning']} warning{'s' if counts['warning'] > 1 else ''}"
        badges.append(f'<span class="telemetry-badge telemetry-badge-orange">{text}</span>')
    if not badges:
        return ""
    words = f"<b>{text_html(title_of(alerts[0]), 60)}</b> {text_html(alerts[0].message)}"
    href = f"/alerts?run={quote(key, safe='')}"
    return f'<a class="telemetry-alert" href="{href}" title="What to try">{" ".join(badges)} {words} →</a>'


def _announce_once(page: RunPage, alerts: Sequence[Finding]) -> None:
    """Show a toast for new critical alerts of a live run."""
    critical = {alert.id: alert for alert in alerts if alert.severity == "critical"}
    new = session.take_unannounced(page.key, critical) if page.card.live else []
    if new:
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        worst = critical[new[0]]
        st.toast(
            f"**{md(title_of(worst), 60)}**{more} {md(worst.message, 200)}",
            duration="long",
        )


# ---------------------------------------------------------------- sidebar and errors


def _run_picker(current: RunCard, runs: RunList) -> None:
    cards = {card.key: card for card in runs.cards if not card.archived} | {current.key: current}
    names = option_texts(cards.values(), suffix=lambda card: card.status.name)
    # Of our own: the parts of Streamlit's are a third of all that a page loads before its first chart.
    show_component(
        "run_picker",
        '<label class="telemetry-picker">Run<select></select></label>',
        data={
            "run": current.key,
            "runs": list(names.items()),
            "help": f"The {OFFERED:,} runs that were updated last; the Runs page has the others."
            if runs.matching > len(runs.cards)
            else "",
        },
        key="_picker",
    )


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


def tab_title(card: RunCard, glyph: str, alerts: Sequence[Finding]) -> str:
    """Return the title of the browser's tab: the worst critical alert, or the run's state."""
    done = f"{card.progress:.0%} " if card.progress is not None else ""
    worst = next((alert for alert in alerts if alert.severity == "critical"), None)
    if worst is None:
        return f"{glyph} {done}{card.name[:60]}"
    return f"⛔ {title_of(worst)[:40]} · {done}{card.name[:60]}"


def _attention(key: str, card: RunCard, alerts: Sequence[Finding]) -> dict[str, object]:
    """Return how to announce open alerts: a count in the navigation, a live region, a notification.

    A notification only if the visitor has asked for it, see `notification_choice`.
    """
    shown = [alert for alert in alerts if alert.severity in ("critical", "warning")]
    worst = shown[0] if shown else None
    is_critical = worst is not None and worst.severity == "critical"
    text = f"{title_of(worst)}. {worst.message}" if worst is not None else ""
    return {
        "count": len(shown),
        "critical": is_critical,
        "say": clean(f"{'Critical' if is_critical else 'Warning'}: {text}"[:_MAX_TEXT]) if text else "",
        "about": f"{key} {worst.id} {worst.kind}"[:_MAX_TEXT] if worst is not None else "",
        "title": clean(f"{title_of(worst)} · {card.name}"[:_MAX_TEXT]) if worst is not None else "",
        "message": clean(worst.message[:_MAX_TEXT]) if worst is not None else "",
        "live": card.live,
    }


def notification_choice() -> None:
    """Show the button that turns on notifications of the browser: off until it is clicked, kept in the browser."""
    show_component("notification_choice", '<div class="telemetry-notify"></div>', data={}, key="_notify")
