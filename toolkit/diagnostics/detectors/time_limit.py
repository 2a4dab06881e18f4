"""A run that will not finish before the time limit of its job."""

from __future__ import annotations

from bisect import bisect_left

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.detector import SingleIncidentDetector
from toolkit.diagnostics.finding import INFO
from toolkit.diagnostics.incident import Incidents
from toolkit.diagnostics.metric_aliases import Row, number_in
from toolkit.diagnostics.step_batch import StepBatch
from toolkit.runfolder.records import END, START, STEP
from toolkit.runfolder.status import FINISHED


class TimeLimit(SingleIncidentDetector):
    """Reports that the steps that are left take longer than the job may run, evaluations and checkpoints included."""

    signals = ("*",)
    _limit = 0.0
    """When the job must end; 0 if that, or the number of steps, is not known."""

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._forget()

    def _forget(self) -> None:
        # Seconds and steps at each look, and of the longest part between two: one long pause need not come again.
        self._points: list[tuple[float, int]] = []
        self._longest = (0.0, 0)
        self._next = self._in_a_row = 0

    def take(self, row: Row) -> None:
        """Look at the pace, each thousandth of the planned steps."""
        if row.event == STEP and self._limit and row.step >= self._next:
            self._look(row)
        elif row.event == START:
            limit = number_in(row.record, "job_end_time") or 0.0
            is_known = 0.0 < limit < at.LIMIT_FARTHEST_S and self._incidents.planned_steps > 0
            self._limit = limit if is_known else 0.0
            self._severity = INFO if row.record.get("job_restarts") else None
            self._forget()
        elif row.event == END and row.record.get("status") == FINISHED:
            self._resolve(row.step)

    def skim(self, batch: StepBatch, start: int) -> int:
        """Pass over the records before the next look."""
        return bisect_left(batch.steps, self._next, start) if self._limit else len(batch)

    def _look(self, row: Row) -> None:
        step, points, planned = row.step, self._points, self._incidents.planned_steps
        elapsed, now = number_in(row.record, "elapsed") or 0.0, number_in(row.record, "time") or 0.0
        before_s, before = points[-1] if points else (0.0, 0)
        is_time = before_s < elapsed < at.LIMIT_FARTHEST_S and 0.0 < now < at.LIMIT_FARTHEST_S
        if step >= planned or not is_time:
            return
        if len(points) > 1:
            # The first part may have waited for a compilation.
            self._longest = max(self._longest, (elapsed - before_s, step - before))
        points.append((elapsed, step))
        self._next = step + max(1, planned // at.LIMIT_LOOKS_OF_PLAN)
        if len(points) < at.LIMIT_FEWEST_LOOKS:
            return
        (first_s, first), (half_s, half) = points[1], points[len(points) // 2]
        whole = (elapsed - first_s - self._longest[0]) / (step - first - self._longest[1])
        left_s = (planned - step) * min(whole, (elapsed - half_s) / (step - half))
        late_s = float(round(now + left_s - self._limit))
        incident, has_seen_enough = self._incident, elapsed > at.LIMIT_SEEN * (elapsed + self._limit - now)
        if incident is None:
            least_s = max(at.LIMIT_LEAST_S, at.LIMIT_SHARE * left_s, self._longest[0])
            turns = has_seen_enough and late_s > least_s
        else:
            turns = late_s <= 0.0 or now > self._limit + at.LIMIT_GRACE_S
            incident.evidence["late_s"], incident.end_step = max(late_s, 0.0), step
        self._in_a_row = self._in_a_row + 1 if turns else 0
        if self._in_a_row == at.LIMIT_LOOKS:
            self._in_a_row = 0
            if incident is not None:
                self._resolve(step)
            elif now <= self._limit:
                self._incident = self._incidents.open(
                    "time_limit", "global_step", start_step=step, noticed_step=step
                )
                self._incident.evidence |= {"late_s": late_s, "limit_time": self._limit}
                self._incident.severity = self._severity
