"""Alerts of a run: findings of the run itself and of the detectors, errors, lost records, NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.finding import RESOLVED, SEVERITIES, Finding, merged_by_id, problem_from
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, VAL_LOSS, signal_of
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.records import END, ERROR, LOST, Record
from toolkit.telemetry.runfolder.status import FINISHED
from toolkit.telemetry.runfolder.untrusted import number_in, whole_in
from toolkit.telemetry.runs.findings.health import findings_of
from toolkit.telemetry.runs.store import MetricInfo, RunStore

NOT_FINITE: Final = "nan"

_MAX_READ: Final = 1000
_LATEST: Final = float("inf")


def alerts_of(store: RunStore, key: str) -> list[Finding]:
    """Return the alerts found in the records read so far: the most severe first, open before resolved."""
    found = findings_of(store, key)
    events = store.events(key, (ERROR, LOST, END), limit=_MAX_READ)
    ends = [record for record in events if record.get("event") == END]
    over = partial(_if_over, store, key, ends)
    found += _with_total_counts(
        merged_by_id(
            over(record, problem_from(record)) for record in events if record.get("event") != END
        ).values(),
        ends,
    )
    explained = {alert.metric for alert in found if alert.kind == NOT_FINITE}
    if not explained:
        # Known from the columns, long before the detectors have reached it in a large log.
        found += [_not_finite(store, key, info) for info in store.metrics(key) if info.non_finite]
    return sorted(_with_unique_ids(found), key=_rank)


def _if_over(store: RunStore, key: str, ends: Iterable[Record], record: Record, alert: Finding) -> Finding:
    """Return an error as resolved if a later session got beyond its step, or finished."""
    session = whole_in(record.get("session"))
    if alert.event != ERROR or session is None:
        return alert
    later = [start for start in store.sessions(key) if start.session > session]
    furthest = store.card(key).step
    if not later or not (
        any(end.get("status") == FINISHED and (whole_in(end.get("session")) or 0) > session for end in ends)
        or (alert.start_step is not None and furthest is not None and furthest > alert.start_step)
    ):
        return alert
    first = later[0].first_step
    return replace(alert, state=RESOLVED, resolved_step=int(first) if math.isfinite(first) else None)


def unseen_alerts(alerts: Iterable[Finding], labels: Labels) -> list[Finding]:
    """Return the open alerts that are neither seen nor muted, in order."""
    return [alert for alert in alerts if alert.is_open and not is_dismissed(alert, labels)]


def is_dismissed(alert: Finding, labels: Labels) -> bool:
    """Return whether this alert is marked as seen or its kind is muted."""
    return alert.acknowledged_key in labels.acknowledged or alert.kind in labels.muted


def _with_unique_ids(alerts: Iterable[Finding]) -> list[Finding]:
    """Return `alerts` with unique ids: records may contain duplicates."""
    found: dict[str, Finding] = {}
    for alert in alerts:
        new = alert.id
        while new in found:
            new += " again"
        found[new] = alert if new == alert.id else replace(alert, id=new)
    return list(found.values())


def _rank(alert: Finding) -> tuple[int, bool, float, float]:
    # An alert without a step is an error or lost records, which concern the whole run.
    latest = alert.latest_step
    return (
        -SEVERITIES.index(alert.severity),
        not alert.is_open,
        -(_LATEST if latest is None else effect_on_loss(alert)),
        -(_LATEST if latest is None else latest),
    )


def effect_on_loss(alert: Finding) -> float:
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

    alerts: tuple[Finding, ...]
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
        return max((a.severity for a in self.alerts if a.is_open == self.is_open), key=SEVERITIES.index)


def grouped(alerts: Iterable[Finding]) -> list[AlertGroup]:
    """Return alerts folded by title: open groups first, then by severity and effect on the loss."""
    groups: dict[str, list[Finding]] = {}
    for alert in alerts:
        groups.setdefault(_group_key(alert), []).append(alert)
    found = [AlertGroup(alerts=tuple(sorted(group, key=_within_group))) for group in groups.values()]
    return sorted(found, key=lambda group: (not group.is_open, min(_rank(alert) for alert in group.alerts)))


def _group_key(alert: Finding) -> str:
    # Each error has its own message and stack.
    return alert.id if alert.event == ERROR else title_of(alert)


def _within_group(alert: Finding) -> tuple[bool, int, float]:
    latest = alert.latest_step
    return (not alert.is_open, -SEVERITIES.index(alert.severity), -(_LATEST if latest is None else latest))


def _with_total_counts(errors: Iterable[Finding], ends: Iterable[Record]) -> list[Finding]:
    """Return errors with their total count, from the end record of their session."""
    counts = {}
    for end in ends:
        kinds = end.get("errors")
        for kind in kinds if isinstance(kinds, list) else ():
            if isinstance(kind, dict) and type(kind.get("count")) is int:
                counts[f"{end.get('session')}-error-{kind.get('fingerprint')}"] = kind["count"]
    return [replace(error, count=max(error.count, counts.get(error.id, 1))) for error in errors]


def _not_finite(store: RunStore, key: str, info: MetricInfo) -> Finding:
    runs = store.series(key, info.name, buckets=8).non_finite
    step = int(runs[0].first_x) if runs else None
    # Marked as seen for this range: the next one is new again.
    newest = int(runs[-1].first_x) if runs else 0
    return Finding(
        id=f"non-finite {info.name} {newest}",
        severity="critical" if info.name == "train_loss" else "warning",
        kind=NOT_FINITE,
        message=f"{info.name} was NaN or infinite {info.non_finite:,} times"
        + (f", first at step {step:,}" if step is not None else ""),
        event="",
        start_step=step,
        metric=info.name,
        evidence={"times": info.non_finite, "of": info.count},
    )
