"""Alerts page: what was found wrong, from which step on, how that is known and what to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from dashboard.charts.curves import Mark
from dashboard.components import faces
from dashboard.components.curve_panel import Options, Tally, curve_panel
from dashboard.components.frame import RunPage, live, open_run, read
from dashboard.data.alerts import Alert, alerts_of
from dashboard.data.run_store import Refused
from dashboard.data.words import clean, clock, count, md, short_number

_SEVERITIES: Final = {
    "critical": ("Critical", ":material/error:", "red"),
    "warning": ("Warning", ":material/warning:", "orange"),
    "info": ("Info", ":material/info:", "blue"),
}
_AROUND_STEPS: Final = 500
_MOST_SHOWN: Final = 50


def main() -> None:
    """Draw the page."""
    page = open_run()
    if page is None:
        return
    chosen = st.pills(
        "Severity",
        tuple(_SEVERITIES),
        selection_mode="multi",
        key="severity",
        bind="query-params",
        format_func=lambda name: _SEVERITIES[name][0],
        label_visibility="collapsed",
    )
    live(page, "The alerts", lambda: _alerts(page, tuple(chosen or _SEVERITIES)))


def _alerts(page: RunPage, severities: Sequence[str]) -> None:
    read(page)
    found = alerts_of(page.store, page.key)
    acknowledged = page.store.meta(page.key).labels.acknowledged
    shown = [alert for alert in found if alert.severity in severities]
    if not shown:
        _nothing(page, bool(found))
        return
    counts = Counter(alert.severity for alert in shown)
    with st.container(horizontal=True):
        for name, (word, icon, tone) in _SEVERITIES.items():
            if counts[name]:
                st.badge(f"{counts[name]} {word.lower()}", icon=icon, color=tone)  # type: ignore[arg-type]  # ours
    for number, alert in enumerate(shown[:_MOST_SHOWN]):
        _card(page, alert, number, seen=alert.id in acknowledged)
    if len(shown) > _MOST_SHOWN:
        st.caption(f"The {_MOST_SHOWN} worst of {count(len(shown))}.")


def _card(page: RunPage, alert: Alert, number: int, *, seen: bool) -> None:
    word, icon, tone = _SEVERITIES[alert.severity]
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(word, icon=icon, color=tone)  # type: ignore[arg-type]  # ours
            st.markdown(f"**{md(alert.kind, 60)}**" + (" :gray[seen]" if seen else ""), width="content")
            where = f"step {alert.step:,}" if alert.step is not None else ""
            st.caption(" · ".join(part for part in (where, clock(alert.time) if alert.time else "") if part))
        st.markdown(md(alert.message, 600))
        with st.expander("Evidence and what to try"):
            _details(page, alert, number)
            if not seen and st.button("I have seen this", key=f"_seen {number} {alert.id}"):
                _acknowledge(page, alert.id)


def _details(page: RunPage, alert: Alert, number: int) -> None:
    for name, value in list(alert.evidence.items())[:20]:
        text = short_number(value) if isinstance(value, (int, float)) else clean(str(value))
        st.text(f"{clean(str(name))}: {text}")
    for title, items in (("Likely causes", alert.causes), ("What to try", alert.advice)):
        if items:
            st.markdown(f"**{title}**")
            for item in items[:10]:
                st.markdown(f"- {md(item, 300)}")
    if alert.trace:
        st.code(clean(alert.trace), language=None)
    if alert.step is not None:
        step = float(alert.step)
        around = Options(
            fixed_window=(step - _AROUND_STEPS, step + _AROUND_STEPS),
            marks=(Mark(x=step, text=alert.kind, tone="critical"),),
        )
        curve_panel(
            page,
            alert.metric,
            [(alert.metric, alert.metric)],
            around,
            Tally(),
            height=180,
            key=f"chart alert {number} {page.key}",
        )


def _acknowledge(page: RunPage, alert_id: str) -> None:
    labels = page.store.meta(page.key).labels
    try:
        page.store.label(page.key, replace(labels, acknowledged=(*labels.acknowledged, alert_id)[-500:]))
    except Refused as error:
        st.error(md(str(error)))
    else:
        st.rerun()


def _nothing(page: RunPage, filtered: bool) -> None:
    if filtered:
        st.info("Nothing of this severity.", icon=":material/filter_alt:")
        return
    metrics = page.store.metrics(page.key)
    if not metrics:
        faces.no_records(page.card.status.why)
        return
    with st.container(border=True):
        st.markdown("**No alerts.**")
        st.caption(
            f"Watched so far: NaN and infinities in {count(len(metrics))} metrics, records lost, errors of the run. "
            "Findings that the run itself writes appear here as well."
        )


main()
