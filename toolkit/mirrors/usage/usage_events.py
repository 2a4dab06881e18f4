"""Turns the records of a session into usage events: the same records always give the same events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from toolkit.mirrors.usage.allow_list import RUN_END, RUN_PROGRESS, RUN_START, allowed
from toolkit.mirrors.usage.error_reports import ErrorReports
from toolkit.mirrors.usage.event import OF_THE_SERVICE, UsageEvent
from toolkit.mirrors.usage.runtime_metrics import RuntimeMetrics
from toolkit.mirrors.usage.start_fields import about_machine, about_training
from toolkit.privacy.public_names import is_public_model
from toolkit.privacy.redaction import Redactor
from toolkit.runfolder.records import END, ERROR, START, STEP, Record

ENVIRONMENT: Final = "environment"
"""The record that describes the machine, if the start record could not wait for it."""

_WAIT_S: Final = 30.0
"""How long a run-start event waits for all its properties."""
_FIRST_PROGRESS_S: Final = 60.0
_PROGRESS_S: Final = 300.0
_LONGER_BY: Final = 0.1
"""Progress is reported less often the longer a run takes: about a hundred times in a month."""


class UsageEventReader:
    """Turns the records of one session into usage events. Each value passes the allow-list, then the redactor."""

    def __init__(self, session: int, *, environ: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._redactor = Redactor(environ=environ)
        self._start: Record = {}
        self._began: float | None = None
        self._has_started = False
        self._is_over = False
        self._has_stepped = False
        self._next_progress = 0.0
        self._metrics = RuntimeMetrics(is_resumed=session > 1)
        self._errors = ErrorReports()
        self._last_seq = -1

    def take(self, record: Record) -> list[UsageEvent]:
        """Return the events that `record`, the next of the session, leads to; each record counts once."""
        seq, time = record.get("seq"), record.get("time")
        if record.get("session") != self._session or not isinstance(seq, int) or seq <= self._last_seq:
            return []
        if not isinstance(time, (int, float)):
            return []
        self._last_seq = seq
        if self._is_over:
            return []
        self._process(record)
        return list(self._events_at(record))

    def _process(self, record: Record) -> None:
        event = record.get("event")
        if event in (START, ENVIRONMENT):
            self._start = {**self._start, **record}
        if event == START and self._began is None:
            self._began = _elapsed(record)
        if event == ERROR:
            self._errors.take(record)
        self._has_stepped = self._has_stepped or event == STEP
        self._metrics.take(record)

    def _events_at(self, record: Record) -> Iterator[UsageEvent]:
        elapsed, is_end = _elapsed(record), record.get("event") == END
        if not self._has_started and (is_end or self._is_start_complete(elapsed)):
            self._has_started = True
            self._next_progress = elapsed + _FIRST_PROGRESS_S
            yield self._event(RUN_START, record, self._about_start())
        if is_end:
            self._is_over = True
            totals = {**self._metrics.totals(record), **self._errors.totals(record)}
            counted = {name: record.get(name) for name in ("status", "records_lost", "telemetry_errors")}
            yield self._event(RUN_END, record, {**totals, **counted})
        elif self._has_started and record.get("event") == STEP and elapsed >= self._next_progress:
            self._next_progress = elapsed + max(_PROGRESS_S, _LONGER_BY * elapsed)
            yield self._event(RUN_PROGRESS, record, self._metrics.progress())

    def _is_start_complete(self, elapsed: float) -> bool:
        """Return whether a run-start event has all its properties, or has waited long enough for them."""
        if self._began is None:
            return False
        return (self._has_stepped and "python" in self._start) or elapsed - self._began >= _WAIT_S

    def _about_start(self) -> dict[str, Any]:
        return {
            **about_machine(self._start),
            **about_training(self._start, is_public_model=is_public_model),
            "is_resumed": self._session > 1 or bool(self._start.get("resumed_from_step")),
        }

    def _event(self, name: str, record: Record, found: Mapping[str, Any]) -> UsageEvent:
        properties = self._redactor.redact({**allowed(name, found), **OF_THE_SERVICE})
        return UsageEvent(name=name, time=record["time"], properties=properties)


def events_of(records: Iterable[Record]) -> Iterator[UsageEvent]:
    """Yield the events of the records of a run, which may have several sessions."""
    readers: dict[int, UsageEventReader] = {}
    for record in records:
        session = record.get("session")
        if isinstance(session, int):
            yield from readers.setdefault(session, UsageEventReader(session)).take(record)


def _elapsed(record: Record) -> float:
    elapsed = record.get("elapsed")
    return float(elapsed) if isinstance(elapsed, (int, float)) else 0.0
