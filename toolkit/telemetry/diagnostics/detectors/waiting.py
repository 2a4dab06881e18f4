"""Steps that wait: for their data, or while the GPU is mostly idle."""

from __future__ import annotations

import math
from collections import deque

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.metric_aliases import (
    DATA_TIME,
    GPU_MEMORY,
    GPU_UTIL,
    STEP_TIME,
    Row,
    name_of,
)
from toolkit.telemetry.diagnostics.robust import Window, start_of_streak
from toolkit.telemetry.runfolder.records import SYSTEM

_REPORT_AGAIN_SHARE = 0.15


class DataStarvation(SingleIncidentDetector):
    """Reports steps that wait for their data for a large share of their time; always a warning."""

    kind = "data_starvation"
    signals = (DATA_TIME,)
    _reported = 0.0

    def _forget(self) -> None:
        self._shares = Window(at.DATA_WINDOW)
        self._steps: deque[int] = deque(maxlen=at.DATA_WINDOW)

    def take(self, row: Row) -> None:
        """Look at one step's time and the part of it that was waiting."""
        waited, took = row.values[DATA_TIME], row.values.get(STEP_TIME)
        if took is None or not (0.0 <= waited < math.inf and 0.0 < took < math.inf):
            return
        # Some loops include the waiting in the step's time and some do not.
        of_step = waited / took if waited <= took else waited / (waited + took)
        self._shares.push(of_step)
        self._steps.append(row.step)
        if len(self._shares) < at.DATA_FEWEST:
            return
        share = self._shares.median
        incident = self._incident
        if incident is None:
            if share > at.DATA_SHARE:
                self._open(row, share)
        elif share < at.DATA_SHARE_OVER:
            self._resolve(row.step)
        else:
            self._follow(incident, row.step, of_step, share)

    def _open(self, row: Row, share: float) -> None:
        shares = self._shares.values()
        first = start_of_streak([value > at.DATA_SHARE for value in shares])
        self._reported = share
        start, count = self._steps[first], len(shares) - first
        self._report(DATA_TIME, row, start_step=start, count=count, share_pct=float(round(100 * share)))

    def _follow(self, incident: Incident, step: int, of_step: float, share: float) -> None:
        if of_step > at.DATA_SHARE:
            incident.grow(step)
        if share >= self._reported + _REPORT_AGAIN_SHARE:
            self._reported = share
            incident.evidence["share_pct"] = float(round(100 * share))
            self._incidents.mark_changed(incident)


_REPORT_AGAIN_PCT = 10.0
_STEPS_FOR_USUAL = 5

_StepMean = tuple[int, float, float | None]
"""A step, the mean utilisation during it, and when it ended if that is known."""


class IdleGpu(SingleIncidentDetector):
    """Reports a GPU that is busy less than half of the time while steps advance.

    The samples of one step are averaged. Steps with unusually many samples are pauses and are skipped, as
    are the start-up and a GPU that is not used at all, unless its memory is held.
    """

    kind = "low_gpu_util"
    signals = (GPU_UTIL,)
    _reported_pct = _total_pct = 0.0
    _total_steps = 0
    _metric = ""
    _by_system = False

    def _forget(self) -> None:
        self._step: int = -1
        self._samples: int = 0
        self._sum: float = 0.0
        self._usual_samples = Window(at.GPU_STEPS)
        self._step_means: deque[_StepMean] = deque(maxlen=at.GPU_STEPS)
        self._idle: deque[_StepMean] = deque(maxlen=at.GPU_STEPS)
        self._idle_since: float | None = None
        self._time: float | None = None
        self._memory = self._most_memory = 0.0
        self._works: bool = False

    def take(self, row: Row) -> None:
        """Add a sample to those of its step."""
        util = row.values[GPU_UTIL]
        if not 0.0 <= util <= 100.0:
            return
        if row.event == SYSTEM:
            if not self._by_system:
                self._by_system = True
                self._forget()
        elif self._by_system:
            # The logger also puts a sample on the next step record.
            return
        if row.step != self._step:
            if self._samples:
                self._metric = self._metric or name_of(GPU_UTIL, row.record)
                self._end_step(self._step, row.step)
            self._step, self._samples, self._sum = row.step, 0, 0.0
        self._samples += 1
        self._sum += util
        self._time = row.time
        self._memory = row.values.get(GPU_MEMORY, 0.0)
        self._most_memory = max(self._most_memory, self._memory)

    def _end_step(self, step: int, noticed_step: int) -> None:
        usual = self._usual_samples
        is_pause = len(usual) >= _STEPS_FOR_USUAL and self._samples > at.GPU_PAUSE * usual.median
        usual.push(self._samples)
        if is_pause:
            return
        step_mean = (step, self._sum / self._samples, self._time)
        if step_mean[1] <= at.GPU_NOTHING_PCT and not self._is_held(step_mean):
            self._idle.append(step_mean)
            return
        self._idle_since = self._idle_since if step_mean[1] <= at.GPU_NOTHING_PCT else None
        for idle in self._idle:
            self._add(idle, noticed_step)
        self._idle.clear()
        self._add(step_mean, noticed_step)

    def _is_held(self, step_mean: _StepMean) -> bool:
        """Whether the idle GPU has been so for long while its memory is held."""
        is_held = self._memory >= max(at.GPU_HELD_MIB, at.GPU_HELD_SHARE * self._most_memory)
        if not is_held or self._idle_since is None:
            self._idle_since = step_mean[2] if is_held else None
            return False
        return self._works and step_mean[2] is not None and step_mean[2] - self._idle_since >= at.GPU_LONG_S

    def _add(self, step_mean: _StepMean, noticed_step: int) -> None:
        step_means = self._step_means
        step_means.append(step_mean)
        if not self._works:
            lately = list(step_means)[-at.GPU_WORKING_STEPS :]
            if len(lately) == at.GPU_WORKING_STEPS and (
                _mean(lately) >= at.GPU_WORKING_PCT or len(step_means) == at.GPU_STEPS
            ):
                self._works = True
                step_means.clear()
        elif self._incident is not None:
            self._follow(self._incident, step_mean, noticed_step)
        elif step_mean[1] < at.GPU_BUSY_PCT and (ordered := self._enough()):
            half = len(ordered) // 2
            # Both halves: one long pause in a file without steps is not a GPU that is mostly idle.
            if _mean(ordered[:half]) < at.GPU_BUSY_PCT and _mean(ordered[half:]) < at.GPU_BUSY_PCT:
                self._open(ordered, noticed_step)

    def _enough(self) -> list[_StepMean]:
        """Return the steps of the last minutes, or as many as are enough without a time; empty if there are fewer."""
        step_means = list(self._step_means)
        now = step_means[-1][2]
        if now is not None:
            for count in range(at.GPU_FEWEST_STEPS, len(step_means) + 1):
                since = step_means[-count][2]
                if since is not None and now - since >= at.GPU_LONG_S:
                    return step_means[-count:]
        return step_means if len(step_means) == at.GPU_STEPS else []

    def _open(self, step_means: list[_StepMean], noticed_step: int) -> None:
        mean = _mean(step_means)
        self._reported_pct = mean
        self._total_pct, self._total_steps = sum(step_mean[1] for step_mean in step_means), len(step_means)
        self._incident = self._incidents.open(
            self.kind,
            self._metric,
            start_step=step_means[0][0],
            noticed_step=noticed_step,
            count=len(step_means),
            mean_pct=float(round(mean)),
        )

    def _follow(self, incident: Incident, step_mean: _StepMean, noticed_step: int) -> None:
        step_means = self._enough() or list(self._step_means)
        half = min(at.GPU_STEPS, len(step_means)) // 2
        lately = step_means[-half:]
        if half >= at.GPU_FEWEST_STEPS // 2 and _mean(lately) >= at.GPU_BUSY_AGAIN_PCT:
            self._resolve(noticed_step, end_step=max(incident.start_step, lately[0][0]))
            self._step_means.clear()
            return
        incident.grow(step_mean[0])
        self._total_pct += step_mean[1]
        self._total_steps += 1
        mean = self._total_pct / self._total_steps
        incident.evidence["mean_pct"] = float(round(mean))
        if abs(mean - self._reported_pct) >= _REPORT_AGAIN_PCT:
            self._reported_pct = mean
            self._incidents.mark_changed(incident)


def _mean(step_means: list[_StepMean]) -> float:
    return sum(step_mean[1] for step_mean in step_means) / len(step_means)
