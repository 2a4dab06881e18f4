"""Alerts page: what was found wrong, from which step on, how that is known and what to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from dashboard.charts.curves import Mark
from dashboard.components import faces
from dashboard.components.curve_panel import Options, Tally, curve_panel
from dashboard.components.frame import RunPage, live, open_run, read
from dashboard.data.run_store import Refused
from dashboard.data.words import clean, clock, count, md, short_number
from toolkit.runfolder.records import ERROR, FINDING, LOST, Record

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
    found = [_as_alert(record) for record in page.store.events(page.key, (FINDING, ERROR, LOST), limit=500)]
    found.extend(_not_finite(page))
    acknowledged = page.store.meta(page.key).labels.acknowledged
    shown = [alert for alert in found if alert["severity"] in severities]
    if not shown:
        _nothing(page, bool(found))
        return
    counts = Counter(alert["severity"] for alert in shown)
    with st.container(horizontal=True):
        for name, (word, icon, tone) in _SEVERITIES.items():
            if counts[name]:
                st.badge(f"{counts[name]} {word.lower()}", icon=icon, color=tone)  # type: ignore[arg-type]  # ours
    for number, alert in enumerate(sorted(shown, key=_order)[:_MOST_SHOWN]):
        _card(page, alert, number, seen=alert["id"] in acknowledged)
    if len(shown) > _MOST_SHOWN:
        st.caption(f"The {_MOST_SHOWN} newest of {count(len(shown))}.")


def _order(alert: Mapping[str, Any]) -> tuple[int, float]:
    return (tuple(_SEVERITIES).index(alert["severity"]), -float(alert["time"] or 0.0))


def _as_alert(record: Record) -> dict[str, Any]:
    event = record.get("event")
    severity = record.get("severity")
    kind = {ERROR: "error", LOST: "records lost"}.get(str(event), str(record.get("kind", "finding")))
    if not isinstance(severity, str) or severity not in _SEVERITIES:
        severity = "critical" if event == ERROR else "warning"
    message = record.get("message")
    if event == LOST:
        message = f"{record.get('records')} records were lost: {record.get('reason')}"
    step = record.get("start_step", record.get("global_step"))
    return {
        "id": str(record.get("id") or f"{event}-{record.get('seq')}"),
        "severity": severity,
        "kind": kind,
        "step": step if isinstance(step, int) else None,
        "end_step": record.get("end_step"),
        "time": record.get("time") if isinstance(record.get("time"), (int, float)) else None,
        "message": str(message or kind),
        "evidence": record.get("evidence") if isinstance(record.get("evidence"), dict) else {},
        "causes": record.get("causes") or record.get("likely_causes") or (),
        "advice": record.get("advice") or record.get("try") or (),
        "metric": str(record.get("metric") or "train_loss"),
        "trace": record.get("traceback"),
    }


def _not_finite(page: RunPage) -> list[dict[str, Any]]:
    """Values that are no number are in the records themselves, whether or not anything watched the run."""
    alerts = []
    for info in page.store.metrics(page.key):
        if info.non_finite:
            series = page.store.series(page.key, info.name, buckets=8)
            runs = series.non_finite
            step = int(runs[0].first_x) if runs else None
            alerts.append(
                {
                    "id": f"non-finite {info.name}",
                    "severity": "critical" if info.name == "train_loss" else "warning",
                    "kind": "not finite",
                    "step": step,
                    "end_step": int(runs[-1].last_x) if runs else None,
                    "time": None,
                    "message": f"{info.name} was NaN or infinite {info.non_finite:,} times"
                    + (f", first at step {step:,}" if step is not None else ""),
                    "evidence": {"times": info.non_finite, "of": info.count},
                    "causes": (),
                    "advice": (),
                    "metric": info.name,
                    "trace": None,
                }
            )
    return alerts


def _card(page: RunPage, alert: Mapping[str, Any], number: int, *, seen: bool) -> None:
    word, icon, tone = _SEVERITIES[alert["severity"]]
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(word, icon=icon, color=tone)  # type: ignore[arg-type]  # ours
            st.markdown(f"**{md(alert['kind'], 60)}**" + (" :gray[seen]" if seen else ""), width="content")
            where = f"step {alert['step']:,}" if alert["step"] is not None else ""
            st.caption(
                " · ".join(part for part in (where, clock(alert["time"]) if alert["time"] else "") if part)
            )
        st.markdown(md(alert["message"], 600))
        with st.expander("Evidence and what to try"):
            _details(page, alert, number)
            if not seen and st.button("I have seen this", key=f"_seen {number} {alert['id']}"):
                _acknowledge(page, alert["id"])


def _details(page: RunPage, alert: Mapping[str, Any], number: int) -> None:
    for name, value in list(alert["evidence"].items())[:20]:
        text = short_number(value) if isinstance(value, (int, float)) else clean(str(value))
        st.text(f"{clean(str(name))}: {text}")
    for title, items in (("Likely causes", alert["causes"]), ("What to try", alert["advice"])):
        listed = list(items) if isinstance(items, (list, tuple)) else [items]
        if listed:
            st.markdown(f"**{title}**")
            for item in listed[:10]:
                st.markdown(f"- {md(str(item), 300)}")
    if alert["trace"]:
        st.code(clean(str(alert["trace"])), language=None)
    if alert["step"] is not None:
        step = float(alert["step"])
        around = Options(
            fixed_window=(step - _AROUND_STEPS, step + _AROUND_STEPS),
            marks=(Mark(x=step, text=alert["kind"], tone="critical"),),
        )
        curve_panel(
            page,
            alert["metric"],
            [(alert["metric"], alert["metric"])],
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
