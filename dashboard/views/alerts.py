"""Alerts page: what was found wrong, from which step on, how that is known, what to try, and whether it helped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import streamlit as st

from dashboard import session
from dashboard.components import page_states
from dashboard.components.alert_card import SEVERITIES, alert_card, keep
from dashboard.components.frame import RunPage, live, open_run, read
from dashboard.data.alerts import RECORDS_LOST, Alert, alerts_of, is_put_away
from dashboard.data.formatting import count, md
from toolkit.diagnostics.catalogue import CATALOGUE
from toolkit.diagnostics.finding import OPEN, RESOLVED
from toolkit.runfolder.labels import Labels

_KINDS: Final = (*CATALOGUE, "error", RECORDS_LOST)
_OF_OTHER_RANKS: Final = frozenset({"straggler"})
"""Found where the other ranks write records, too: by the run itself, and by `telemetry doctor`."""
_MOST_SHOWN: Final = 30
# Charts that are drawn without being asked for; each further card has its own under one click.
_MOST_UNFOLDED: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What the switches above the cards say; nothing chosen is everything."""

    severities: Sequence[str]
    states: Sequence[str]
    kinds: Sequence[str]

    def let_through(self, alert: Alert) -> bool:
        """Say whether `alert` is wanted."""
        return (
            (not self.severities or alert.severity in self.severities)
            and (not self.states or alert.state in self.states)
            and (not self.kinds or alert.kind in self.kinds)
        )


def main() -> None:
    """Draw the page."""
    page = open_run(with_worst=False)
    if page is None:
        return
    filters = _filters()
    live(page, "The alerts", lambda: _alerts(page, filters), until_examined=True)


def _filters() -> Filters:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        severities = st.pills(
            "Severity",
            tuple(SEVERITIES),
            selection_mode="multi",
            key="severity",
            bind="query-params",
            format_func=lambda name: SEVERITIES[name][0],
            label_visibility="collapsed",
            width="content",
        )
        states = st.pills(
            "State",
            (OPEN, RESOLVED),
            selection_mode="multi",
            key="state",
            bind="query-params",
            format_func=str.capitalize,
            label_visibility="collapsed",
            width="content",
        )
        kinds = st.multiselect(
            "Kind",
            _KINDS,
            key="kind",
            bind="query-params",
            format_func=_title,
            placeholder="All kinds",
            label_visibility="collapsed",
            width=260,
        )
    return Filters(severities=severities or (), states=states or (), kinds=kinds or ())


def _alerts(page: RunPage, filters: Filters) -> None:
    read(page)
    found = alerts_of(page.store, page.key)
    labels = page.store.meta(page.key).labels
    _say_how_far(page)
    wanted = [alert for alert in found if filters.let_through(alert)]
    in_sight = [alert for alert in wanted if not is_put_away(alert, labels)]
    put_away = [alert for alert in wanted if is_put_away(alert, labels)]
    if not found:
        _nothing(page)
    elif not wanted:
        st.info("Nothing of this severity, state and kind.", icon=":material/filter_alt:")
    elif not in_sight:
        st.info("Everything here has been seen or muted.", icon=":material/done_all:")
    _counts(in_sight)
    _cards(page, in_sight, labels)
    if put_away and st.toggle(
        f"Show {count(len(put_away))} that {'was' if len(put_away) == 1 else 'were'} seen or muted",
        key="put_away",
        bind="query-params",
    ):
        _cards(page, put_away, labels, unfold=False)
    _muted(page, labels)


def _say_how_far(page: RunPage) -> None:
    part = page.store.examine(page.key, wait_s=0.0)
    if part < 1.0:
        st.progress(part, text=f"Examined {part:.0%} of the records so far")


def _counts(shown: Sequence[Alert]) -> None:
    counts = Counter(alert.severity for alert in shown)
    with st.container(horizontal=True):
        for name, (word, icon, tone) in SEVERITIES.items():
            if counts[name]:
                plural = "s" if name == "warning" and counts[name] > 1 else ""
                st.badge(f"{counts[name]} {word.lower()}{plural}", icon=icon, color=tone)


def _cards(page: RunPage, alerts: Sequence[Alert], labels: Labels, *, unfold: bool = True) -> None:
    unfolded = 0
    for alert in alerts[:_MOST_SHOWN]:
        is_unfolded = unfold and alert.is_open and unfolded < _MOST_UNFOLDED
        unfolded += is_unfolded
        alert_card(page, alert, labels, unfolded=is_unfolded)
    if len(alerts) > _MOST_SHOWN:
        st.caption(f"The {_MOST_SHOWN} worst of {count(len(alerts))}.")


def _muted(page: RunPage, labels: Labels) -> None:
    if not labels.muted:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Muted for this run:", width="content")
        if session.only_looks():
            st.caption(
                ", ".join(md(_title(kind), 40) for kind in dict.fromkeys(labels.muted)), width="content"
            )
            return
        for kind in dict.fromkeys(labels.muted):
            if st.button(
                f"Unmute “{md(_title(kind), 40)}”",
                icon=":material/notifications:",
                type="tertiary",
                key=f"_unmute {page.key} {kind}",
            ):
                keep(page, replace(labels, muted=tuple(name for name in labels.muted if name != kind)))


def _nothing(page: RunPage) -> None:
    metrics = page.store.metrics(page.key)
    if not metrics:
        page_states.no_records(page.card.status.why)
        return
    with st.container(border=True):
        st.markdown("**No alerts.**")
        st.markdown(f"Watched in {count(len(metrics))} metrics and the events of the run:")
        left_out = _OF_OTHER_RANKS if len(page.store.ranks(page.key)) < 2 else frozenset()
        watched = [about.title for kind, about in CATALOGUE.items() if kind not in left_out]
        st.caption(" · ".join((*watched, "Errors", "Records lost")))


def _title(kind: str) -> str:
    return CATALOGUE[kind].title if kind in CATALOGUE else kind


main()
