"""NaN and infinities in a loss, a gradient norm or any other metric that the run logged."""

from __future__ import annotations

import math

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, WARNING
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import (
    DATA_TIME,
    GPU_MEMORY,
    GPU_UTIL,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    RATE,
    RSS,
    STEP_TIME,
    VAL_LOSS,
    Row,
    name_of,
    signal_of,
)
from toolkit.telemetry.runfolder.records import EPOCH, NON_FINITE, Record

_KIND = "nan"
_WATCHED = (LOSS, VAL_LOSS, GRAD_NORM)
_OF_THE_MACHINE = frozenset({STEP_TIME, DATA_TIME, RATE, GPU_UTIL, RSS, GPU_MEMORY, LOSS_SCALE})
"""Signals whose NaN says nothing about the training."""


class NonFinite:
    """One incident from the first NaN or infinity until finite values are back."""

    signals: tuple[str, ...] = ("*",)
    all_ranks = False

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._open: Incident | None = None
        self._bad: dict[str, int] = {}
        """Signals that are NaN or infinite, and how many finite values each has had since."""
        self._last_good: dict[str, float] = {}
        self._infinite_norms = 0
        self._probed_at: int | None = None
        """The record of the last single infinite norm."""
        self._others: dict[str, _Other] = {}

    def take(self, row: Row) -> None:
        """Look at one record."""
        values = row.values
        for signal in _WATCHED:
            value = values.get(signal)
            if value is not None:
                if value - value == 0.0:
                    if self._bad:
                        self._is_good(signal, row)
                    self._last_good[signal] = value
                else:
                    self._is_bad(signal, value, row)
        if self._others:
            self._see_whether_others_are_back(row)
        # Other NaN values while the loss is NaN have the same cause.
        if self._open is None and NON_FINITE in row.record:
            self._check_others(row)

    def restart(self, step: int) -> None:
        """Resolve everything: weights from before the NaN may have been loaded."""
        if self._open is not None:
            self._incidents.close(self._open, resolved_step=step)
        self._open = None
        self._bad.clear()
        self._infinite_norms = 0
        for other in self._others.values():
            if other.incident.is_open:
                self._incidents.close(other.incident, resolved_step=step)

    def _is_bad(self, signal: str, value: float, row: Row) -> None:
        self._bad[signal] = 0
        incident = self._open
        if incident is None:
            incident = self._open = self._incidents.open(
                _KIND, name_of(signal, row.record), start_step=row.step, noticed_step=row.step
            )
            incident.variant = "" if signal in self._last_good else "from the start"
            if signal in self._last_good:
                incident.evidence["last_good"] = self._last_good[signal]
            incident.evidence.update({name: row.values[name] for name in (LR,) if name in row.values})
        elif incident.end_step != row.step:
            incident.count += 1
        incident.end_step = row.step
        is_probe = signal == GRAD_NORM and math.isinf(value) and len(self._bad) == 1
        self._infinite_norms = self._infinite_norms + 1 if is_probe else 0
        # While a loss scale is adjusted, single overflows are skipped: nothing is lost.
        severity = INFO if 0 < self._infinite_norms < at.INFINITE_NORMS_IN_A_ROW else CRITICAL
        if severity == INFO:
            rows = self._incidents.rows
            again = self._probed_at is not None and incident.count == 1
            if again and rows - (self._probed_at or 0) <= at.PROBES_APART:
                severity = WARNING
            self._probed_at = rows
        if incident.severity != severity and incident.severity != CRITICAL:
            incident.severity = severity
            self._incidents.mark_changed(incident)
        if incident.severity == INFO:
            incident.variant = "probe"
        elif incident.variant == "probe":
            incident.variant = ""
        if row.values.get(LOSS) == 0.0 and signal == GRAD_NORM:
            incident.metric, incident.variant = name_of(LOSS, row.record), "hidden"

    def _is_good(self, signal: str, row: Row) -> None:
        if signal not in self._bad or self._open is None:
            return
        self._bad[signal] += 1
        calm = 1 if signal == VAL_LOSS or self._open.severity == INFO else at.FINITE_AGAIN
        if self._bad[signal] >= calm:
            del self._bad[signal]
        if not self._bad:
            self._incidents.close(self._open, resolved_step=row.step)
            self._open = None
            self._infinite_norms = 0

    def _check_others(self, row: Row) -> None:
        named = row.record[NON_FINITE] if isinstance(row.record[NON_FINITE], dict) else {}
        values = {field: row.record.get(field) for field in named}
        fields = (field for field, one in values.items() if type(one) is float and one - one != 0.0)
        for name in {_metric_of(field, row.record): None for field in fields}:
            # Other detectors watch speed and machine, and an epoch's mean repeats its steps.
            signal = signal_of(name)
            if (signal in _OF_THE_MACHINE or signal in _WATCHED) and (
                signal in row.values or row.event == EPOCH
            ):
                continue
            other = self._others.get(name)
            if other is None:
                if len(self._others) >= at.METRICS_WATCHED_FOR_NAN:
                    continue
                other = self._others[name] = _Other(self._incidents, name, row)
            elif other.incident.is_open:
                other.incident.count += 1
            else:
                self._incidents.reopen(other.incident, noticed_step=row.step)
            other.finite = 0
            other.incident.end_step = row.step

    def _see_whether_others_are_back(self, row: Row) -> None:
        for name, other in self._others.items():
            value = row.record.get(name)
            is_number = type(value) is int or (type(value) is float and value - value == 0.0)
            if is_number and other.incident.is_open:
                other.finite += 1
                if other.finite >= at.FINITE_AGAIN:
                    incident = other.incident
                    self._incidents.close(incident, resolved_step=row.step)


def _metric_of(field: str, record: Record) -> str:
    """Return the metric whose variation a field holds, if it does."""
    metric, _, ending = field.rpartition("_")
    return metric if ending in ("min", "max") and metric in record else field


class _Other:
    """Another metric with NaN or infinity: one incident for the whole run, which may be reopened."""

    def __init__(self, incidents: Incidents, name: str, row: Row) -> None:
        self.finite = 0
        """Finite values since the last NaN or infinity."""
        self.incident = incidents.open(_KIND, name, start_step=row.step, noticed_step=row.step)
        self.incident.severity = WARNING
        self.incident.variant = "of another metric"
