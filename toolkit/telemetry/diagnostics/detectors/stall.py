"""A run whose steps have stopped."""

from __future__ import annotations

from typing import Any

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.metric_aliases import Row, number_in
from toolkit.telemetry.diagnostics.robust import median
from toolkit.telemetry.runfolder import records as kinds
from toolkit.telemetry.runfolder.records import shows_count_from_zero, steps_done
from toolkit.telemetry.runfolder.status import STALL_S, STALL_TIMES

_METRIC = "global_step"
_EXPLAINS = frozenset({kinds.EVAL, kinds.EPOCH, kinds.CHECKPOINT, kinds.SAMPLE, kinds.SPAN, kinds.COMPLETION})
"""Records of something that a loop does between two steps; each comes when that is over."""
_NO_TIME_S = 1e12
"""Thirty thousand years: larger values are not times."""
_IS_OVER = frozenset({kinds.END, kinds.ERROR})


class Stall(SingleIncidentDetector):
    """Reports that no step has come for far longer than usual, by the times in the records.

    A record without a step, such as a system record, shows it while it lasts, the next step afterwards. A pause
    that an evaluation, a checkpoint or a sample explains is not a stall, and neither is the time between two sessions.
    """

    kind = "stalled"
    signals = ("*",)
    _usual_s = 0.0
    """Seconds for one step; 0 while that is not known."""
    _stride = 1.0
    """Steps between two step records."""
    _longest_pause_s: float | None = None
    _max_steps: int | None = None
    _from_zero = False

    def _forget(self) -> None:
        self._by_elapsed: bool | None = None
        self._step: int | None = None
        self._time: float = 0.0
        self._furthest: int = -1
        """The furthest step in any record, and the time of the last sign of the loop."""
        self._alive: float = 0.0
        self._has_heartbeat: bool = False
        self._explained: bool = False
        self._is_over: bool = False
        self._intervals: list[float] = []
        self._first_of_intervals: int = 0

    def take(self, row: Row) -> None:
        """Check the time of this record, and whether the step has advanced."""
        now: Any = row.record.get("elapsed")
        # Shortcut for nearly all records: the session uses this clock, and the record has it.
        if not (self._by_elapsed and type(now) is float and -_NO_TIME_S < now < _NO_TIME_S):
            now = self._clock(row)
            if now is None:
                return
        if row.event == kinds.STEP or not row.event:
            if not row.step:
                self._from_zero = True
            self._add_step(row.step, now)
        elif row.event == kinds.SYSTEM:
            self._add_heartbeat(row.step, now)
        else:
            self._add_other(row, now)

    def _clock(self, row: Row) -> float | None:
        """Return the record's time by the clock that the session's first record had."""
        # The monotonic clock, if there is one: a corrected wall clock is not a stall.
        elapsed = number_in(row.record, "elapsed")
        if self._by_elapsed is None:
            self._by_elapsed = elapsed is not None
        now = elapsed if self._by_elapsed else row.time
        return now if now is not None and abs(now) < _NO_TIME_S else None

    def _add_step(self, step: int, now: float) -> None:
        before = self._step
        if before is not None and step > before:
            seconds, steps = now - self._time, step - before
            if seconds > STALL_S and self._usual_s:
                self._judge_gap(before, step, seconds)
            if self._explained:
                self._explained = False
                self._longest_pause_s = max(self._longest_pause_s or 0.0, seconds)
            if not self._intervals:
                self._first_of_intervals = before
            self._intervals.append(seconds / steps)
            if len(self._intervals) == at.STALL_INTERVALS:
                self._usual_s = median(self._intervals)
                self._stride = (step - self._first_of_intervals) / at.STALL_INTERVALS
                self._intervals = []
        if self._incident is not None:
            self._end(self._incident, step, now)
        self._step = step
        self._time = self._alive = now
        # An error may have been caught, or come from telemetry itself.
        self._is_over = False
        if step > self._furthest:
            self._furthest = step

    def _add_heartbeat(self, step: int, now: float) -> None:
        if step > self._furthest:
            # A live run reports steps that were folded and have no record of their own.
            if self._incident is not None:
                self._end(self._incident, step, now)
            self._furthest, self._alive, self._has_heartbeat = step, now, True
            return
        if self._step is None or not self._usual_s or self._is_over:
            return
        seconds = now - self._alive
        if self._incident is not None and self._is_reported_by_run(self._incident.start_step, self._furthest):
            # The run's own report came a little later and has more detail.
            self._resolve(self._furthest)
        elif self._incident is not None:
            self._grow(self._incident, seconds)
        elif seconds > STALL_S and seconds > self._limit(1.0 if self._has_heartbeat else self._stride):
            self._open(self._furthest, self._furthest, seconds, 1.0 if self._has_heartbeat else self._stride)

    def _add_other(self, row: Row, now: float) -> None:
        if row.event in _EXPLAINS:
            if self._incident is not None:
                self._longest_pause_s = max(self._longest_pause_s or 0.0, now - self._alive)
                self._end(self._incident, self._furthest, now)
            self._explained = True
            self._alive = now
        elif row.event in _IS_OVER:
            self._is_over = True
        elif row.event == kinds.START:
            max_steps = row.record.get("max_steps")
            self._max_steps = max_steps if type(max_steps) is int else None
            self._from_zero = self._from_zero or shows_count_from_zero(row.record)

    def _limit(self, steps: float) -> float:
        if (
            self._max_steps is not None
            and steps_done(self._furthest, from_zero=self._from_zero) >= self._max_steps
        ):
            # The last step is done; saving and uploading may take any time.
            return float("inf")
        pauses = at.STALL_BEFORE_FIRST_PAUSE_S
        if self._longest_pause_s is not None:
            pauses = at.STALL_PAUSES * self._longest_pause_s
        return max(STALL_S, STALL_TIMES * self._usual_s * steps, pauses)

    def _judge_gap(self, before: int, step: int, seconds: float) -> None:
        if self._incident is not None or self._explained:
            return
        steps = step - before
        if seconds > STALL_TIMES * self._usual_s * steps:
            self._open(before, step, seconds, steps)

    def _open(self, start_step: int, noticed_step: int, seconds: float, steps: float) -> None:
        if self._is_reported_by_run(start_step, noticed_step):
            return
        self._incident = self._incidents.open(
            self.kind,
            _METRIC,
            start_step=start_step,
            noticed_step=noticed_step,
            seconds=float(round(seconds)),
            peak_step=start_step,
            usual_s=self._usual_s * steps,
        )
        self._incident.variant = ""
        self._incident.severity = None if seconds >= at.STALL_LOUD_S else INFO

    def _is_reported_by_run(self, start_step: int, noticed_step: int) -> bool:
        """Return whether the run has reported this pause itself, with more detail."""
        return (
            self._incidents.hang_step is not None and start_step <= self._incidents.hang_step <= noticed_step
        )

    def _grow(self, incident: Incident, seconds: float) -> None:
        incident.count += 1
        if seconds > incident.evidence["seconds"]:
            incident.evidence.update(seconds=float(round(seconds)), peak_step=self._furthest)
        if incident.severity == INFO and seconds >= at.STALL_LOUD_S:
            incident.severity = None
            self._incidents.mark_changed(incident)

    def _end(self, incident: Incident, step: int, now: float) -> None:
        seconds = now - self._alive
        if seconds > incident.evidence["seconds"]:
            self._grow(incident, seconds)
        incident.variant = "resumed"
        self._incidents.close(incident, end_step=step, resolved_step=step)
        self._incident = None
