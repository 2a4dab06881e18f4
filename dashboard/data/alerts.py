"""What is wrong with a run, from whatever its records say: findings, errors, losses, values that are no number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dashboard.data.run_store import MetricInfo, RunStore
from toolkit.runfolder.records import ERROR, FINDING, LOST, Record

SEVERITIES: Final = ("critical", "warning", "info")
"""Worst first."""

_MOST_READ: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that is wrong, and how that is known."""

    id: str
    severity: str
    kind: str
    message: str
    step: int | None = None
    time: float | None = None
    metric: str = "train_loss"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    trace: str | None = None


def alerts_of(store: RunStore, key: str) -> list[Alert]:
    """Return what is wrong with the run as far as it has been read, worst and newest first."""
    found = [_from_record(record) for record in store.events(key, (FINDING, ERROR, LOST), limit=_MOST_READ)]
    # Values that are no number are in the records themselves, whether or not anything watched the run.
    found += [_not_finite(store, key, info) for info in store.metrics(key) if info.non_finite]
    return sorted(found, key=lambda alert: (SEVERITIES.index(alert.severity), -(alert.time or 0.0)))


def _from_record(record: Record) -> Alert:
    event, severity, moment = record.get("event"), record.get("severity"), record.get("time")
    kind = {ERROR: "error", LOST: "records lost"}.get(str(event), str(record.get("kind", "finding")))
    if not isinstance(severity, str) or severity not in SEVERITIES:
        severity = "critical" if event == ERROR else "warning"
    message = record.get("message")
    if event == LOST:
        message = f"{record.get('records')} records were lost: {record.get('reason')}"
    step, evidence, trace = (
        record.get("start_step", record.get("global_step")),
        record.get("evidence"),
        record.get("traceback"),
    )
    return Alert(
        id=str(record.get("id") or f"{event}-{record.get('seq')}"),
        severity=severity,
        kind=kind,
        message=str(message or kind),
        step=step if isinstance(step, int) else None,
        time=float(moment) if isinstance(moment, (int, float)) else None,
        metric=str(record.get("metric") or "train_loss"),
        evidence=evidence if isinstance(evidence, dict) else {},
        causes=_texts(record.get("causes") or record.get("likely_causes")),
        advice=_texts(record.get("advice") or record.get("try")),
        trace=str(trace) if trace else None,
    )


def _not_finite(store: RunStore, key: str, info: MetricInfo) -> Alert:
    runs = store.series(key, info.name, buckets=8).non_finite
    step = int(runs[0].first_x) if runs else None
    # Seen once is seen for this stretch: the next one is news again.
    newest = int(runs[-1].first_x) if runs else 0
    return Alert(
        id=f"non-finite {info.name} {newest}",
        severity="critical" if info.name == "train_loss" else "warning",
        kind="not finite",
        message=f"{info.name} was NaN or infinite {info.non_finite:,} times"
        + (f", first at step {step:,}" if step is not None else ""),
        step=step,
        metric=info.name,
        evidence={"times": info.non_finite, "of": info.count},
    )


def _texts(value: object) -> tuple[str, ...]:
    if not value:
        return ()
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else (str(value),)
