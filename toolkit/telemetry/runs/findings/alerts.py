"""Alerts of a run: findings of the run itself and of the detectors, errors, lost records, NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import OPEN, RESOLVED, Finding, finding_from, latest_findings
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, VAL_LOSS, signal_of
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.records import END, ERROR, FINDING, LOST, MAX_RECORD_BYTES, Record
from toolkit.telemetry.runfolder.status import FINISHED
from toolkit.telemetry.runfolder.untrusted import number_in, whole_in
from toolkit.telemetry.runs.findings.error_details import Detail, details_of
from toolkit.telemetry.runs.store import MetricInfo, RunStore

SEVERITIES: Final = ("critical", "warning", "info")
"""Worst first."""

RECORDS_LOST: Final = "records lost"
NOT_FINITE: Final = "nan"
_TITLES: Final = {"error": "Error", RECORDS_LOST: "Records lost"}

_MAX_READ: Final = 1000
_LATEST: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One problem, and the evidence for it."""

    id: str
    severity: str
    kind: str
    message: str
    event: str = FINDING
    """The kind of record it is from."""
    step: int | None = None
    """The first step."""
    end_step: int | None = None
    """The last step; None while it is ongoing or if unknown."""
    noticed_step: int | None = None
    state: str = OPEN
    resolved_step: int | None = None
    count: int = 1
    repeats: int = 0
    time: float | None = None
    """When the run recorded it; None if it did not."""
    metric: str = "train_loss"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    confidence: float | None = None
    """How sure a finding is, from 0 to 1; None if unknown."""
    trace: str | None = None
    details: tuple[Detail, ...] = ()
    """Further details of its record: stacks, the last output, open spans."""

    @property
    def title(self) -> str:
        """What it is called."""
        return _TITLES.get(self.kind) or title_of(self.kind, self.evidence)

    @property
    def is_open(self) -> bool:
        """Whether it is ongoing."""
        return self.state == OPEN

    @property
    def acknowledged_key(self) -> str:
        """The key stored when it is marked as seen: a spike that becomes a divergence is new again."""
        return self.id if self.event != FINDING or f"-{self.kind}-" in self.id else f"{self.id}:{self.kind}"


def alerts_of(store: RunStore, key: str) -> list[Alert]:
    """Return the alerts found in the records read so far: the most severe first, open before resolved."""
    found = findings_of(store, key)
    events = store.events(key, (ERROR, LOST, END), limit=_MAX_READ)
    ends = [record for record in events if record.get("event") == END]
    over = partial(_if_over, store, key, ends)
    found += _with_total_counts(
        _merged_by_id(over(record, _from_record(record)) for record in events if record.get("event") != END),
        ends,
    )
    explained = {alert.metric for alert in found if alert.kind == NOT_FINITE}
    if not explained:
        # Known from the columns, long before the detectors have reached it in a large log.
        found += [_not_finite(store, key, info) for info in store.metrics(key) if info.non_finite]
    return sorted(_with_unique_ids(found), key=_rank)


def _if_over(store: RunStore, key: str, ends: Iterable[Record], record: Record, alert: Alert) -> Alert:
    """Return an error as resolved if a later session got beyond its step, or finished."""
    session = whole_in(record.get("session"))
    if alert.event != ERROR or session is None:
        return alert
    later = [start for start in store.sessions(key) if start.session > session]
    furthest = store.card(key).step
    if not later or not (
        any(end.get("status") == FINISHED and (whole_in(end.get("session")) or 0) > session for end in ends)
        or (alert.step is not None and furthest is not None and furthest > alert.step)
    ):
        return alert
    first = later[0].first_step
    return replace(alert, state=RESOLVED, resolved_step=int(first) if math.isfinite(first) else None)


def findings_of(store: RunStore, key: str) -> list[Alert]:
    """Return one alert per finding: the run's newest record of it, else the detectors', with their latest count."""
    records = store.events(key, (FINDING,), limit=_MAX_READ)
    found = {alert.id: alert for alert in _merged_by_id(map(_from_record, records))}
    for name, finding in latest_findings(records, store.findings(key)).items():
        alert = _from_finding(finding)
        recorded = found.get(name, alert)
        found[name] = replace(alert, time=recorded.time, details=recorded.details)
    return list(found.values())


def unseen_alerts(alerts: Iterable[Alert], labels: Labels) -> list[Alert]:
    """Return the open alerts that are neither seen nor muted, in order."""
    return [alert for alert in alerts if alert.is_open and not is_dismissed(alert, labels)]


def is_dismissed(alert: Alert, labels: Labels) -> bool:
    """Return whether this alert is marked as seen or its kind is muted."""
    return alert.acknowledged_key in labels.acknowledged or alert.kind in labels.muted


def _with_unique_ids(alerts: Iterable[Alert]) -> list[Alert]:
    """Return `alerts` with unique ids: records may contain duplicates."""
    found: dict[str, Alert] = {}
    for alert in alerts:
        new = alert.id
        while new in found:
            new += " again"
        found[new] = alert if new == alert.id else replace(alert, id=new)
    return list(found.values())


def _rank(alert: Alert) -> tuple[int, bool, float, float]:
    # An alert without a step is an error or lost records, which concern the whole run.
    latest = alert.noticed_step if alert.noticed_step is not None else alert.step
    return (
        SEVERITIES.index(alert.severity),
        not alert.is_open,
        -(_LATEST if latest is None else effect_on_loss(alert)),
        -(_LATEST if latest is None else latest),
    )


def effect_on_loss(alert: Alert) -> float:
    """Return by how much of its level it raised a loss; infinite if the loss is NaN, 0 if it is not about a loss."""
    if alert.kind == NOT_FINITE:
        return _LATEST if signal_of(alert.metric) in (LOSS, VAL_LOSS) else 0.0
    if alert.kind == "overfit":
        return (number_in(alert.evidence.get("rise_pct")) or 0.0) / 100
    if alert.kind in ("spike", "divergence", "val_spike"):
        return max(0.0, (number_in(alert.evidence.get("ratio")) or 1.0) - 1.0)
    return 0.0


# ---------------------------------------------------------------- equal alerts


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """Alerts with the same title: one problem that occurred once or several times."""

    alerts: tuple[Alert, ...]
    """Open ones first, then the most severe, then the newest."""

    @property
    def key(self) -> str:
        """Stays the same while further alerts join."""
        return _group_key(self.alerts[0])

    @property
    def is_open(self) -> bool:
        """Whether one of them is ongoing."""
        return self.alerts[0].is_open

    @property
    def severity(self) -> str:
        """The worst severity of the ongoing ones, or of all if none is."""
        return min((a.severity for a in self.alerts if a.is_open == self.is_open), key=SEVERITIES.index)


def grouped(alerts: Iterable[Alert]) -> list[AlertGroup]:
    """Return alerts folded by title: open groups first, then by severity and effect on the loss."""
    groups: dict[str, list[Alert]] = {}
    for alert in alerts:
        groups.setdefault(_group_key(alert), []).append(alert)
    found = [AlertGroup(alerts=tuple(sorted(group, key=_within_group))) for group in groups.values()]
    return sorted(found, key=lambda group: (not group.is_open, min(_rank(alert) for alert in group.alerts)))


def _group_key(alert: Alert) -> str:
    # Each error has its own message and stack.
    return alert.id if alert.event == ERROR else alert.title


def _within_group(alert: Alert) -> tuple[bool, int, float]:
    latest = alert.noticed_step if alert.noticed_step is not None else alert.step
    return (not alert.is_open, SEVERITIES.index(alert.severity), -(_LATEST if latest is None else latest))


def _with_total_counts(errors: list[Alert], ends: Iterable[Record]) -> list[Alert]:
    """Return errors with their total count, from the end record of their session."""
    counts = {}
    for end in ends:
        kinds = end.get("errors")
        for kind in kinds if isinstance(kinds, list) else ():
            if isinstance(kind, dict) and type(kind.get("count")) is int:
                counts[f"{end.get('session')}-error-{kind.get('fingerprint')}"] = kind["count"]
    return [replace(error, count=max(error.count, counts.get(error.id, 1))) for error in errors]


def _merged_by_id(newest_first: Iterable[Alert]) -> list[Alert]:
    """Return one alert per id: the newest record, with the time of the oldest."""
    found: dict[str, Alert] = {}
    for alert in newest_first:
        newest = found.get(alert.id)
        # Only one of them has the stacks of all threads.
        found[alert.id] = (
            alert
            if newest is None
            else replace(newest, time=alert.time, details=newest.details or alert.details)
        )
    return list(found.values())


def _from_record(record: Record) -> Alert:
    moment = record.get("time")
    time = float(moment) if isinstance(moment, (int, float)) else None
    finding = finding_from(record) if record.get("event") == FINDING else None
    if finding is not None:
        return replace(_from_finding(finding), time=time, details=details_of(record))
    event, severity = str(record.get("event")), record.get("severity")
    kind = {ERROR: "error", LOST: RECORDS_LOST}.get(event, str(record.get("kind", "finding")))
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
    times = record.get("count")
    return Alert(
        id=str(record.get("id") or f"{event}-{record.get('seq')}-{moment}"),
        count=times if event == ERROR and type(times) is int and times > 0 else 1,
        details=details_of(record),
        severity=severity,
        kind=kind,
        message=str(message or kind),
        event=event,
        step=step if isinstance(step, int) else None,
        time=time,
        metric=str(record.get("metric") or ("" if event == ERROR else "train_loss")),
        evidence=evidence if isinstance(evidence, dict) else {},
        causes=_texts(record.get("causes") or record.get("likely_causes")),
        advice=_texts(record.get("advice") or record.get("try")),
        # Our own records are never longer.
        trace=str(trace)[:MAX_RECORD_BYTES] if trace else None,
    )


def _from_finding(finding: Finding) -> Alert:
    return Alert(
        id=finding.id,
        severity=finding.severity,
        kind=finding.kind,
        message=finding.message or finding.kind,
        step=finding.start_step,
        end_step=finding.end_step,
        noticed_step=finding.noticed_step,
        state=OPEN if finding.is_open else RESOLVED,
        resolved_step=finding.resolved_step,
        count=finding.count,
        repeats=finding.repeats,
        metric=finding.metric,
        evidence=finding.evidence,
        causes=finding.causes,
        advice=finding.advice,
        remedies=finding.remedies,
        confidence=finding.confidence,
    )


def _not_finite(store: RunStore, key: str, info: MetricInfo) -> Alert:
    runs = store.series(key, info.name, buckets=8).non_finite
    step = int(runs[0].first_x) if runs else None
    # Marked as seen for this range: the next one is new again.
    newest = int(runs[-1].first_x) if runs else 0
    return Alert(
        id=f"non-finite {info.name} {newest}",
        severity="critical" if info.name == "train_loss" else "warning",
        kind=NOT_FINITE,
        message=f"{info.name} was NaN or infinite {info.non_finite:,} times"
        + (f", first at step {step:,}" if step is not None else ""),
        event="",
        step=step,
        metric=info.name,
        evidence={"times": info.non_finite, "of": info.count},
    )


def _texts(value: object) -> tuple[str, ...]:
    if not value:
        return ()
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else (str(value),)
