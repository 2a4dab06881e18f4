"""A run that has become slower, and one that will not finish before the time limit of its job."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import (
    ELAPSED,
    EPOCH_TIME,
    RATE,
    RSS,
    STEP_TIME,
    Row,
    name_of,
    number_in,
)
from toolkit.telemetry.diagnostics.robust import IQR_TO_SIGMA, MAD_TO_SIGMA, median, paces, start_of_streak
from toolkit.telemetry.runfolder.records import END, START, STEP, SYSTEM
from toolkit.telemetry.runfolder.status import FINISHED

_TOKENS = "tokens_per_sec"
_RUNNING_AVERAGES = frozenset({"iters_per_sec_avg", "train_speed(iter/s)"})
"""Rates over the whole run so far, as ms-swift logs them."""
_REPORT_AGAIN_PCT = 10.0
_ABOVE = at.SPEED_BLOCK // 2
_BELOW = _ABOVE - 1


class ThroughputDrop(SingleIncidentDetector):
    """Reports a speed that falls by a quarter, suddenly, and stays there.

    The speed is the logged rate, else it is derived from the step time: a step with a larger batch takes longer and is
    not slower. Of two rates the tokens are used, because they do not depend on the length of a sample. A log with
    neither, or with a running average of the speed, may still have a clock.
    The time of steps that are over within a millisecond is not judged.
    """

    kind = "throughput_drop"
    # Samples of the machine have the memory of the process.
    signals = (RATE, STEP_TIME, EPOCH_TIME, ELAPSED, RSS)

    def __init__(self, incidents: Incidents) -> None:
        super().__init__(incidents)
        self._others = OtherPrograms(incidents)
        self._reported_pct = 0.0
        self._level = self._back = 0.0
        """The speed before the drop, and the speed at which it counts as recovered."""
        self._calm = self._calm_needed = 0
        self._lately: deque[float] = deque(maxlen=at.SPEED_LOOKS_IF_NOISY)
        self._signal = ""
        self._name = ""
        self._clock = (0, 0.0)

    def _forget(self) -> None:
        self._speeds: list[float] = []
        self._steps: list[int] = []
        self._before: tuple[list[float], list[int]] = ([], [])
        self._low: list[tuple[list[float], list[int]]] = []
        self._stride: float = 0.0
        self._to_skip = at.SPEED_WARM_UP_BLOCKS
        self._few: list[tuple[float, int, float | None]] = []
        """The speed, step and time of the first records."""
        self._steady_best: float = 0.0
        self._kept = 0
        # (median, standard deviation) of each look
        self._usual: deque[tuple[float, float]] = deque(maxlen=at.SPEED_BLOCKS)
        # (median, standard deviation, first step) of each look
        self._history: deque[tuple[float, float, int]] = deque(maxlen=2 * at.SPEED_LASTING_BLOCKS)

    def take(self, row: Row) -> None:
        """Look at the speed of a step record."""
        if row.event == SYSTEM:
            self._others.take(row)
            return
        # The time of an epoch may come with its evaluation.
        if row.event != STEP and row.event and EPOCH_TIME not in row.values:
            return
        speed = row.values.get(RATE)
        if self._signal != RATE:
            speed = self._speed_without_rate(speed, row)
        elif self._name == _TOKENS:
            speed = number_in(row.record, _TOKENS)
        if self._name in _RUNNING_AVERAGES and speed is not None and speed > 0.0:
            # What the steps so far took makes a clock.
            speed = self._speed_by_clock(row.step / speed, row)
        if speed is None or not 0.0 < speed < math.inf:
            return
        self._speeds.append(speed)
        self._steps.append(row.step)
        if len(self._few) < at.SPEED_FEW[2]:
            self._few.append((speed, row.step, row.time))
            if len(self._few) >= at.SPEED_FEW[0] and self._incident is None:
                self._judge_few()
        if len(self._speeds) == at.SPEED_BLOCK:
            self._end_block()

    def _speed_without_rate(self, rate: float | None, row: Row) -> float | None:
        if rate is not None:
            if self._signal and self._incident is None:
                self._forget()
            self._signal = RATE
            self._name = _TOKENS if _TOKENS in row.record else name_of(RATE, row.record)
            return rate
        signal = STEP_TIME if STEP_TIME in row.values or self._signal == STEP_TIME else EPOCH_TIME
        seconds = row.values.get(signal)
        if seconds is not None:
            if self._signal != signal:
                if self._signal and self._incident is None:
                    self._forget()
                self._signal, self._name = signal, name_of(signal, row.record)
            return 1.0 / seconds if seconds > 0.0 else None
        elapsed = row.values.get(ELAPSED)
        is_timed = self._signal in (STEP_TIME, EPOCH_TIME)
        return None if elapsed is None or is_timed else self._speed_by_clock(elapsed, row)

    def _speed_by_clock(self, elapsed: float, row: Row) -> float | None:
        if not self._signal:
            self._signal, self._name = ELAPSED, name_of(ELAPSED, row.record)
            self._clock = row.step, elapsed
            return None
        (step, before), self._clock = self._clock, (row.step, elapsed)
        # Records of one step share its time, and a clock that went back is another one.
        return (row.step - step) / (elapsed - before) if row.step > step and elapsed > before else None

    def _end_block(self) -> None:
        speeds, steps, self._speeds, self._steps = self._speeds, self._steps, [], []
        self._check(speeds, steps)
        self._before = speeds, steps

    def _check(self, speeds: list[float], steps: list[int]) -> None:
        stride = (steps[-1] - steps[0]) / (at.SPEED_BLOCK - 1)
        if stride > 0 and not self._stride / at.SPEED_STRIDE <= stride <= self._stride * at.SPEED_STRIDE:
            if self._stride and self._incident is None:
                self._usual.clear()
                self._history.clear()
                self._low.clear()
                self._steady_best = 0.0
            self._stride = stride
        if self._to_skip:
            self._to_skip -= 1
            return
        ordered = sorted(speeds)
        now = 0.5 * (ordered[_BELOW] + ordered[_ABOVE])
        spread = (ordered[-3] - ordered[2]) * IQR_TO_SIGMA
        if self._incident is not None:
            self._follow(self._incident, now, steps[-1])
            return
        # The usual case: it is near the highest of them, which no median exceeds.
        if len(self._usual) >= at.SPEED_FEWEST_BLOCKS and now < at.SPEED_DROP * max(self._usual)[0]:
            level = median([block[0] for block in self._usual])
            if (
                now < at.SPEED_DROP * level
                and (self._low or max(self._usual[-1][0], self._usual[-2][0]) >= at.SPEED_BEFORE_DROP * level)
                and not self._is_too_short(level)
            ):
                if not self._low:
                    self._low.append(self._before)
                self._low.append((speeds, steps))
                if len(self._low) > self._looks_needed(level):
                    self._judge_sudden(level, steps[-1])
                return
        self._low.clear()
        self._keep(now, spread, steps)
        if self._incident is None and len(self._history) == 2 * at.SPEED_LASTING_BLOCKS:
            self._judge_lasting(steps[-1])

    def _keep(self, now: float, spread: float, steps: list[int]) -> None:
        self._usual.append((now, spread))
        self._history.append((now, spread, steps[0]))
        self._kept += 1
        if self._kept % at.SPEED_LASTING_BLOCKS == 0:
            self._judge_slow(steps[-1])

    def _is_too_short(self, level: float) -> bool:
        """Whether the steps are too short for their time to be meaningful."""
        return self._signal != RATE and level * at.SPEED_SHORTEST_STEP_S > 1.0

    def _looks_needed(self, level: float) -> int:
        blocks = self._usual
        fell = level - max(median(low[0]) for low in self._low[1:])
        between = _sigma([block[0] for block in blocks])
        within = _of_median([block[1] for block in blocks])
        noisy = at.SPEED_NOISE * max(between, within) > fell
        return at.SPEED_LOOKS_IF_NOISY if noisy else at.SPEED_LOOKS

    def _judge_sudden(self, level: float, noticed_step: int) -> None:
        # The drop began in the first low block, or at the end of the one before it.
        before, low = self._low[0], self._low[1]
        speeds, steps = before[0] + low[0], before[1] + low[1]
        first = start_of_streak([speed < at.SPEED_BACK * level for speed in speeds])
        now = median([speed for block in self._low[1:] for speed in block[0]])
        count = len(speeds) - first + at.SPEED_BLOCK * (len(self._low) - 2)
        if count < at.SPEED_LOOKS * at.SPEED_BLOCK:
            return
        self._open(level, now, steps[first], noticed_step, count)
        self._calm_needed = len(self._low) - 1
        self._low.clear()

    def _judge_lasting(self, noticed_step: int) -> None:
        if min(self._history)[0] >= at.SPEED_LASTING_DROP * max(self._history)[0]:
            # The usual case: no need for their medians.
            return
        looks = list(self._history)
        speeds = [look[0] for look in looks]
        older, newer = speeds[: at.SPEED_LASTING_BLOCKS], speeds[at.SPEED_LASTING_BLOCKS :]
        level, now = median(older), median(newer)
        if now >= at.SPEED_LASTING_DROP * level or self._is_too_short(level):
            return
        # The standard deviation of the difference between two medians.
        of_look = max(_sigma(older), _sigma(newer), _of_median([look[1] for look in looks]))
        sigma = 1.25 * of_look * math.sqrt(2.0 / at.SPEED_LASTING_BLOCKS)
        if level - now < at.SPEED_NOISE * sigma or not (_is_steady(older) and _is_steady(newer)):
            return
        first = start_of_streak([speed < 0.5 * (level + now) for speed in speeds])
        self._open(level, now, looks[first][2], noticed_step, at.SPEED_BLOCK * (len(looks) - first))
        self._calm_needed = at.SPEED_LOOKS_IF_NOISY

    def _judge_few(self) -> None:
        """Detect a drop in a run with few records: its last part against its first, each clear of its own noise."""
        few = self._few[1:]
        record_s = self._record_s()
        if len(few) >= at.SPEED_FEW[1] and record_s < at.SPEED_LONG_RECORD_S:
            return
        before, after = few[: int(at.SPEED_FEW_BEFORE * len(few))], few[-int(at.SPEED_FEW_AFTER * len(few)) :]
        older, newer = sorted(item[0] for item in before), sorted(item[0] for item in after)
        level, now = median(older), median(newer)
        if now >= at.SPEED_DROP * level or self._is_too_short(level):
            return
        # One record in eight may be an exception: an epoch with an evaluation, or a pause.
        if (
            older[len(older) // 8] < at.SPEED_BACK * level
            or newer[-1 - len(newer) // 8] > at.SPEED_BACK * level
        ):
            return
        strides = [(part[-1][1] - part[0][1]) / (len(part) - 1) for part in (before, after)]
        if max(strides) > at.SPEED_STRIDE * min(strides):
            return
        if level - now < at.SPEED_NOISE * max(_sigma(older), _sigma(newer)):
            return
        if (self._signal != RATE or few[-1][2] is not None) and record_s * len(after) < at.SPEED_FEW_LAST_S:
            return
        place = start_of_streak([item[0] < at.SPEED_BACK * level for item in few])
        self._open(level, now, few[place][1], few[-1][1], len(few) - place)
        self._calm_needed = at.SPEED_LOOKS

    def _record_s(self) -> float:
        """How long a record takes; 0 if that is not known."""
        (speed, first, since), (_, last, now) = self._few[1], self._few[-1]
        if since is not None and now is not None:
            return (now - since) / (len(self._few) - 2)
        steps = 1.0 if self._signal == EPOCH_TIME else (last - first) / (len(self._few) - 2)
        return 0.0 if self._signal == RATE else steps / speed

    def _judge_slow(self, noticed_step: int) -> None:
        """Detect a speed that sank slowly and stays: both levels were steady for as long as a lasting drop."""
        lately = [look[0] for look in list(self._history)[-at.SPEED_LASTING_BLOCKS :]]
        if len(lately) < at.SPEED_LASTING_BLOCKS or not _is_steady(lately):
            return
        now = median(lately)
        level = self._steady_best = max(self._steady_best, now)
        if now >= at.SPEED_SLOW_DECLINE * level or self._is_too_short(level):
            return
        if level - now < at.SPEED_NOISE * max(
            _sigma(lately), _of_median([look[1] for look in self._history])
        ):
            return
        start = list(self._history)[-at.SPEED_LASTING_BLOCKS][2]
        self._open(level, now, start, noticed_step, at.SPEED_BLOCK * len(lately))
        self._calm_needed = at.SPEED_LOOKS_IF_NOISY
        self._steady_best = now

    def _open(self, level: float, now: float, start_step: int, noticed_step: int, count: int) -> None:
        self._level = level
        self._back = max(at.SPEED_BACK * level, 0.5 * (level + now))
        self._calm = 0
        self._lately.clear()
        self._incident = self._incidents.open(
            self.kind,
            self._name,
            start_step=start_step,
            noticed_step=noticed_step,
            count=count,
            **self._evidence(now),
        )
        self._reported_pct = self._incident.evidence["lost_pct"]
        self._name_others(self._incident)

    def _name_others(self, incident: Incident) -> None:
        """Say that other programs came to use the machine, where its samples show that."""
        if incident.variant:
            return
        incident.variant, evidence = self._others.since(incident.start_step)
        if incident.variant:
            incident.evidence |= evidence
            self._incidents.mark_changed(incident)

    def _evidence(self, now: float) -> dict[str, float]:
        level = self._level
        shown = (level, now) if self._signal == RATE else (1.0 / level, 1.0 / now)
        return {"lost_pct": float(round(100.0 * (1.0 - now / level))), "usual": shown[0], "now": shown[1]}

    def _follow(self, incident: Incident, now: float, step: int) -> None:
        if now >= self._back:
            self._calm += 1
            if self._calm >= self._calm_needed:
                self._resolve(step)
                self._history.clear()
            return
        self._name_others(incident)
        self._calm = 0
        incident.grow(step, at.SPEED_BLOCK)
        self._lately.append(now)
        evidence = self._evidence(median(self._lately))
        if (
            len(self._lately) == at.SPEED_LOOKS_IF_NOISY
            and evidence["lost_pct"] >= self._reported_pct + _REPORT_AGAIN_PCT
        ):
            incident.evidence.update(evidence)
            self._reported_pct = evidence["lost_pct"]
            self._incidents.mark_changed(incident)


class OtherPrograms:
    """What programs other than the run use of its machine, by the last samples of it."""

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._samples: deque[tuple[int, float | None, float, float | None]] = deque(
            maxlen=20 * at.OTHERS_LOOKS
        )

    def take(self, row: Row) -> None:
        """Keep what one sample says."""
        record, processors = row.record, self._incidents.processors
        busy, own = number_in(record, "cpu_percent"), number_in(record, "process_cpu_percent")
        cpu = busy - own / processors if busy is not None and own is not None and processors else None
        # The run's own memory is known for one GPU.
        used = [name for name in record if name.startswith("gpu/") and name.endswith("/mem_used_gb")]
        held = number_in(record, used[0]) if len(used) == 1 else None
        reserved = number_in(record, "gpu_mem_reserved")
        gpu = held - reserved if held is not None and reserved is not None else None
        if cpu is not None or gpu is not None:
            self._samples.append((row.step, cpu, busy or 0.0, gpu))

    def since(self, step: int) -> tuple[str, dict[str, float]]:
        """Return the variant of the finding and its evidence if they use clearly more since `step`; else nothing."""
        before = [each for each in self._samples if each[0] < step][-at.OTHERS_LOOKS :]
        after = [each for each in self._samples if each[0] >= step][: at.OTHERS_LOOKS]
        gpu = _risen([each[3] for each in before], [each[3] for each in after], at.OTHERS_GPU_GB)
        if gpu is not None:
            return "others on the GPU", {"others_gpu_gb": gpu[1], "others_gpu_before_gb": gpu[0]}
        cpu = _risen([each[1] for each in before], [each[1] for each in after], at.OTHERS_CPU_PCT)
        if cpu is not None and median([each[2] for each in after]) >= at.OTHERS_BUSY_PCT:
            return "others on the processors", {
                "others_cpu_pct": cpu[1],
                "others_cpu_before_pct": max(cpu[0], 0.0),
            }
        return "", {}


def _risen(
    before: Sequence[float | None], after: Sequence[float | None], by: float
) -> tuple[float, float] | None:
    """Return the medians of both if the second is clearly the higher one."""
    older, newer = [[value for value in part if value is not None] for part in (before, after)]
    if min(len(older), len(newer)) < at.OTHERS_FEWEST:
        return None
    then, now = round(median(older), 1), round(median(newer), 1)
    return (then, now) if now - then >= by and now > max(older) else None


def _sigma(speeds: list[float]) -> float:
    level = median(speeds)
    return MAD_TO_SIGMA * median([abs(speed - level) for speed in speeds])


def _of_median(spreads: list[float]) -> float:
    """Return the standard deviation of a look, whose records have `spreads`."""
    return 1.25 * median(spreads) / math.sqrt(at.SPEED_BLOCK)


def _is_steady(speeds: list[float]) -> bool:
    half = len(speeds) // 2
    return abs(median(speeds[:half]) - median(speeds[half:])) <= at.SPEED_LASTING_STEADY * median(speeds)


class TimeLimit(SingleIncidentDetector):
    """Reports that the steps that are left take longer than the job may run, evaluations and checkpoints included."""

    kind = "time_limit"
    signals = ("*",)
    _limit = 0.0
    """When the job must end; 0 if that, or the number of steps, is not known."""

    def _forget(self) -> None:
        # Seconds and steps at each look, and of the longest part between two: one long pause need not come again.
        self._points: list[tuple[float, int]] = []
        self._longest = (0.0, 0)
        self._next = self._in_a_row = 0

    def take(self, row: Row) -> None:
        """Look at the pace, each thousandth of the planned steps."""
        if row.event == STEP and self._limit and row.step >= self._next:
            self._check(row)
        elif row.event == START:
            limit = number_in(row.record, "job_end_time") or 0.0
            is_known = 0.0 < limit < at.LIMIT_FARTHEST_S and self._incidents.planned_steps > 0
            self._limit = limit if is_known else 0.0
            self._severity = INFO if row.record.get("job_restarts") else None
            self._forget()
        elif row.event == END and row.record.get("status") == FINISHED:
            self._resolve(row.step)

    def _check(self, row: Row) -> None:
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
        left_s = (planned - step) * min(paces(points, self._longest))
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
                    self.kind, "global_step", start_step=step, noticed_step=step
                )
                self._incident.evidence |= {"late_s": late_s, "limit_time": self._limit}
                self._incident.severity = self._severity
