"""Alerts page: what is wrong, since when, the evidence, what to try, and whether it helped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, OF_RANKS, title_of, title_of_kind
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runs.findings.alerts import (
    AlertGroup,
    alerts_of,
    grouped,
    is_dismissed,
)
from toolkit.telemetry.runs.formatting import count, md
from toolkit.telemetry.runs.store import Health

from .. import session
from ..charts.incidents import incidents_figure
from ..components import page_states
from ..components.alert_card import alert_card, choice_key, save_labels
from ..components.chart import draw_chart, picked_of
from ..components.frame import RunPage, live, notification_choice, open_run, read
from ..components.own_rules import own_rules

_MAX_SHOWN: Final = 30
_MAX_NAMES: Final = 4
# Cards that are expanded at first; the charts of the others are one click away.
_MAX_EXPANDED: Final = 6


def main() -> None:
    """Draw the page."""
    page = open_run(show_worst=False, drawn_from=_drawn_from)
    if page is None:
        return
    live(page, "The alerts", lambda: _alerts(page), until_examined=True, slower=3)
    own_rules(page)
    notification_choice()


def _drawn_from(_page: RunPage, alerts: Sequence[Finding]) -> object:
    """Return which alerts there are: a new one is shown at once, the numbers of others a little later."""
    return tuple((alert.id, alert.is_open, alert.severity, alert.repeats) for alert in alerts)


def _alerts(page: RunPage) -> None:
    health = read(page)
    found = alerts_of(page.store, page.key)
    labels = page.store.meta(page.key).labels
    visible = [alert for alert in found if not is_dismissed(alert, labels)]
    dismissed = [alert for alert in found if is_dismissed(alert, labels)]
    if not found:
        _nothing(page, health)
    elif not visible:
        st.info("All alerts have been seen or muted.")
    groups = grouped(visible)
    still, over = [group for group in groups if group.is_open], [g for g in groups if not g.is_open]
    _incidents(page, groups)
    if over and not still:
        so_far = " in what has been examined" if session.is_partly("examined", page.key) else ""
        st.markdown(f"✓ **No alert is open{so_far}.**")
    _cards(page, still, labels)
    if over:
        _resolved(page, over, labels)
    if dismissed and st.toggle(
        f"Show {count(len(dismissed))} seen or muted {'alert' if len(dismissed) == 1 else 'alerts'}",
        key="put_away",
        bind="query-params",
    ):
        _cards(page, grouped(dismissed), labels, expand=False)
    _muted(page, labels)


def _incidents(page: RunPage, groups: Sequence[AlertGroup]) -> None:
    """Show when each alert was, on one axis; a click shows that one in its card."""
    pairs = [(alert, group) for group in groups for alert in group.alerts if alert.start_step is not None]
    if len(pairs) < 2:
        return
    key = f"chart incidents {page.key}"

    def choose() -> None:
        number = picked_of(key)
        if number is not None and number < len(pairs):
            alert, group = pairs[number]
            st.session_state[choice_key(page, group)] = alert.id

    alerts = [alert for alert, _ in pairs]
    draw_chart(
        incidents_figure(alerts, page.card.step or 0),
        key=key,
        label=f"{count(len(pairs))} alerts over the steps",
        name=f"{page.card.name} alerts",
        on_pick=choose,
    )


def _cards(page: RunPage, groups: Sequence[AlertGroup], labels: Labels, *, expand: bool = True) -> None:
    expanded = 0
    for group in groups[:_MAX_SHOWN]:
        is_expanded = expand and group.is_open and expanded < _MAX_EXPANDED
        expanded += is_expanded
        alert_card(page, group, labels, expanded=is_expanded)
    if len(groups) > _MAX_SHOWN:
        st.caption(f"Showing the {_MAX_SHOWN} most severe of {count(len(groups))}.")


def _resolved(page: RunPage, groups: Sequence[AlertGroup], labels: Labels) -> None:
    """Show what is over, closed: it is history, and would hide what is not."""
    names = [
        md(title_of(group.alerts[0]), 40)
        + (f" ({count(len(group.alerts))})" if len(group.alerts) > 1 else "")
        for group in groups
    ]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    title = f"Resolved: {', '.join(names[:_MAX_NAMES])}{more}"
    with st.expander(title, key=f"_resolved {page.key}"):
        _cards(page, groups, labels, expand=False)


def _muted(page: RunPage, labels: Labels) -> None:
    if not labels.muted:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Muted for this run:", width="content")
        if session.read_only_reason() is not None:
            st.caption(
                ", ".join(md(title_of_kind(kind), 40) for kind in dict.fromkeys(labels.muted)),
                width="content",
            )
            return
        for kind in dict.fromkeys(labels.muted):
            if st.button(
                f"Unmute “{md(title_of_kind(kind), 40)}”",
                type="tertiary",
                key=f"_unmute {page.key} {kind}",
            ):
                save_labels(page, replace(labels, muted=tuple(name for name in labels.muted if name != kind)))


def _nothing(page: RunPage, health: Health) -> None:
    metrics = page.store.metrics(page.key)
    if not metrics:
        page_states.no_metrics(page.card, health)
        return
    with st.container(border=True):
        st.markdown("**No alerts.**")
        st.markdown(f"Checked {count(len(metrics))} metrics and the events of the run for:")
        # Found only if the other ranks write records, too.
        left_out = OF_RANKS if len(page.store.ranks(page.key)) < 2 else frozenset()
        checked = [about.title for kind, about in CATALOGUE.items() if kind not in left_out]
        st.caption(" · ".join((*checked, "Errors", "Records lost")))
