"""How long the spans of each name took: sums for the step records, and their spread for the summary."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from toolkit.telemetry.logger.spans.ledger_meter import LedgerMeter
from toolkit.telemetry.timing.names import (
    AT_TRAINING,
    DATA_LOADING,
    DEVICE_TIME_PREFIX,
    ENTRY_OF,
    IN_CHECKPOINT,
    IN_TRAINING,
    OF_A_STEP,
    ONE_LOGGER_NAMES,
    PAUSED,
    TIME_PREFIX,
    TRAINING_ITERATION,
    TRAINING_LOOP,
)

_FINEST_S: Final = 1e-9
_WIDTH: Final = math.log(1.04)
"""The spread is kept in classes 4 % wide, so that a percentile is off by 2 % at most and a name costs no memory."""

MAX_NAMES: Final = 200
THE_REST: Final = "(other spans)"
"""A caller's own names beyond the first 200 are added up under this one: names with a number in them would be endless.
200 have room in one summary, however long they are."""
_VOCABULARY: Final = frozenset({*ENTRY_OF, *ONE_LOGGER_NAMES})
_DIGITS: Final = 7


class SpanTimes:
    """The spans of one name."""

    def __init__(self, name: str, bucket: list[float] | None) -> None:
        self.name = name
        self.bucket = bucket
        """Where the ledger's seconds of such a span are added up; None where it counts as what is around it."""
        self.is_on_steps = False
        """Whether step records have its time."""
        self.is_dropped = False
        """Whether it is not to be written: `spans: {drop: [training_loop]}`."""
        self.count = 0
        self.seconds = 0.0
        """Both of the thread that trains."""
        self.others: list[float] = []
        """Durations of other threads, which must not add to the sum at the same time."""
        self.device_seconds = 0.0
        self.written = 0.0
        self.written_on_device = 0.0
        self.kept = 0
        """How many were written one by one."""
        self.failed = 0
        """How many of those that are added up something went wrong in."""
        self._classes: dict[int, int] = {}
        self._spread = 0
        self._total = 0.0
        self._smallest = math.inf
        self._largest = 0.0

    @property
    def total(self) -> float:
        """Seconds of all threads."""
        return self.seconds + sum(self.others)

    def add_to_spread(self, seconds: float) -> None:
        """Count one duration for the percentiles; called by one thread only."""
        place = int(math.log(max(seconds, _FINEST_S)) // _WIDTH)
        self._classes[place] = self._classes.get(place, 0) + 1
        self._spread += 1
        self._total += seconds
        self._smallest = min(self._smallest, seconds)
        self._largest = max(self._largest, seconds)
        if len(self.others) > 1000:
            # Threads append meanwhile: only what was added up is taken away.
            taken = self.others[:]
            self.others[: len(taken)] = [sum(taken)]

    def summary(self) -> dict[str, float]:
        """Return count, total, extremes and percentiles, in seconds."""
        seconds = {
            "total": self._total,
            "min": self._smallest,
            "max": self._largest,
            "p50": self._percentile(0.5),
            "p95": self._percentile(0.95),
        }
        return {"count": self._spread, **{name: _rounded(value) for name, value in seconds.items()}}

    def _percentile(self, part: float) -> float:
        left = part * self._spread
        for place in sorted(self._classes):
            left -= self._classes[place]
            if left <= 0:
                middle = math.exp((place + 0.5) * _WIDTH)
                return min(max(middle, self._smallest), self._largest)
        return self._largest


class SpanTotals:
    """The times of every name, and the fields of step records made of them."""

    def __init__(self, monotonic: Callable[[], float], began: float) -> None:
        self.meter = LedgerMeter(monotonic)
        self.by_name: dict[str, SpanTimes] = {}
        self.active: list[SpanTimes] = []
        """Names that step records have the time of; empty, and so false, in a run without spans."""
        self.profiled: list[Callable[[dict[str, Any]], None]] = []
        """What adds the fields of profiled names, which step records have as well."""
        self.away = 0.0
        """Seconds of this session in which the training was not at its steps, as of the last `take`."""
        self.at_steps = 0.0
        """Seconds in which it was, where iterations are in spans."""
        self._before: dict[str, tuple[float, float]] | None = None
        """What parts of a step had taken when something apart from the training began, until that ends."""
        self._began = began
        # A signal handler may make a span in the middle of one that is being made.
        self._making = threading.RLock()

    def of(self, name: str, *, on_steps: bool) -> SpanTimes:
        """Return the times of `name`; with `on_steps`, step records have it from now on."""
        times = self.by_name.get(name)
        if times is None or (on_steps and not times.is_on_steps):
            with self._making:
                has_place = name in self.by_name or len(self.by_name) < MAX_NAMES or name in _VOCABULARY
                times = self._made(name if has_place else THE_REST)
                if on_steps and not times.is_on_steps:
                    times.is_on_steps = True
                    # What came before is in the summary, and not the next step's.
                    times.written, times.written_on_device = times.total, times.device_seconds
                    self.active.append(times)
        return times

    def _made(self, name: str) -> SpanTimes:
        times = self.by_name.get(name)
        if times is None:
            entry = ENTRY_OF.get(name)
            times = SpanTimes(name, self.meter.bucket(entry) if entry is not None else None)
            self.by_name[name] = times
        return times

    def take(self, elapsed: float) -> dict[str, Any]:
        """Return what has been added up since the last call: the fields of a step record stamped `elapsed`."""
        fields: dict[str, Any] = {}
        if self._before is not None:
            # A step was logged, so the training continues, even without a call that says so.
            self.return_to_training()
        for times in self.active:
            total = times.seconds if not times.others else times.total
            if total > times.written:
                fields[TIME_PREFIX + times.name] = total - times.written
                times.written = total
            if times.device_seconds > times.written_on_device:
                fields[DEVICE_TIME_PREFIX + times.name] = times.device_seconds - times.written_on_device
                times.written_on_device = times.device_seconds
        for put_on in self.profiled:
            put_on(fields)
        now = self._began + elapsed
        totals = self.meter.totals_at(now)
        if totals:
            self.away, self.at_steps = _split(totals)
        fields.update(self.meter.take(now, totals))
        return fields

    def away_at(self, elapsed: float) -> tuple[float, float]:
        """Return `away` and `at_steps` as of `elapsed`."""
        totals = self.meter.totals_at(self._began + elapsed) if self.by_name else ()
        return _split(totals) if totals else (self.away, self.at_steps)

    @property
    def times_checkpoints(self) -> bool:
        """Whether checkpoints of this session are in spans, so that their seconds are known."""
        return IN_CHECKPOINT in self.meter.buckets

    def is_of_training_thread(self) -> bool:
        """Say whether the caller is on the thread that trains."""
        return threading.get_ident() == self.meter.owner

    def follow_steps(self) -> None:
        """Take the calling thread, which logs the first step, for the one that trains, if no span said which one is."""
        is_known = TRAINING_LOOP in self.by_name or TRAINING_ITERATION in self.by_name
        if not is_known and not self.is_of_training_thread():
            self.meter.move_to(threading.get_ident())

    def leave_training(self, entry: str) -> None:
        """Take note that something apart from the training begins, whose time belongs to `entry` of the ledger.

        Until then, parts of a step do not belong to the training: their time is on no step record, and
        waiting for a batch counts as `entry`.
        """
        if self._before is None:
            self._before = {
                times.name: (times.total, times.device_seconds)
                for times in list(self.by_name.values())
                if times.name in OF_A_STEP
            }
            self._made(DATA_LOADING).bucket = self.meter.bucket(entry)

    def return_to_training(self) -> None:
        """Take note that it is over."""
        before, self._before = self._before, None
        if before is None:
            return
        self._made(DATA_LOADING).bucket = self.meter.bucket(ENTRY_OF[DATA_LOADING])
        for times in list(self.by_name.values()):
            if times.name in OF_A_STEP:
                seconds, on_device = before.get(times.name, (0.0, 0.0))
                times.written += times.total - max(seconds, times.written)
                times.written_on_device += times.device_seconds - max(on_device, times.written_on_device)

    def add_profile(self, times: SpanTimes, put_on: Callable[[dict[str, Any]], None]) -> None:
        """Put a profiled name on step records as well, by what adds its fields."""
        self.profiled.append(put_on)
        if not self.active:
            # A step record asks for times only where there are some; of this name it says nothing here.
            self.active.append(times)

    @contextmanager
    def in_control(self) -> Iterator[None]:
        """Have the time of a block count as spent on requests; in a run without spans there is no ledger to keep."""
        if not self.by_name or not self.is_of_training_thread():
            yield
            return
        block: Any = SimpleNamespace(times=self._made(PAUSED), below=None, closed=False)
        self.meter.enter(block, self.meter.monotonic())
        try:
            yield
        finally:
            block.closed = True
            self.meter.leave(block, self.meter.monotonic())

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the summary of every name that was used."""
        summaries = {times.name: times.summary() for times in list(self.by_name.values())}
        return {name: summary for name, summary in summaries.items() if summary["count"]}


def _split(totals: Sequence[tuple[str, float]]) -> tuple[float, float]:
    away = sum([seconds for entry, seconds in totals if entry not in AT_TRAINING])
    at_steps = sum([seconds for entry, seconds in totals if entry in AT_TRAINING])
    return away, at_steps if any(entry == IN_TRAINING for entry, _ in totals) else 0.0


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{_DIGITS}g}")
