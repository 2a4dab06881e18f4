"""Asks every source of system metrics in the background, so that one that hangs holds up only itself."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.core.background import MACHINE, background_job
from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample, Sampler

SHORTEST_INTERVAL_S: Final = 1.0
FAILURES_BEFORE_REST: Final = 5
REST_S: Final = 60.0


class SystemSampling:
    """The newest sample of each source, ready to be read without waiting for anything.

    No lock is shared with the reader. After a fork the child has no threads: `latest` is empty there after the
    freshness limit, and `stop` does nothing.
    """

    def __init__(self, samplers: Sequence[Sampler], *, interval_s: float, clock: Clock, guard: Guard) -> None:
        interval_s = max(SHORTEST_INTERVAL_S, interval_s)
        self._clock = clock
        self._fresh_s = 3 * interval_s + 1
        self._sources = [_Source(sampler, interval_s, clock, guard) for sampler in samplers]
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin; the first samples are taken at once. Raises RuntimeError where the system refuses a thread."""
        for source in self._sources:
            source.job.start()

    def latest(self) -> dict[str, Any]:
        """Return the newest value of every metric whose source answered lately; old values are left out."""
        now = self._clock.monotonic()
        merged: dict[str, Any] = {}
        for source in self._sources:
            answered_at, sample = source.answer
            if now - answered_at <= self._fresh_s:
                merged.update(sample)
        return merged

    def stale(self) -> list[str]:
        """Return the names of the sources that were asked and have not come back: a hung driver or file system."""
        since = self._clock.monotonic() - self._fresh_s
        return [source.sampler.name for source in self._sources if source.asked_at < since]

    def stop(self, timeout_s: float) -> None:
        """Stop every source that answers; return within `timeout_s` whatever the others do."""
        if os.getpid() != self._pid:
            return
        for source in self._sources:
            source.is_stopping = True
            source.job.wake()
        deadline = time.monotonic() + timeout_s
        for source in self._sources:
            if source.job.is_started:
                source.job.join(max(0.0, deadline - time.monotonic()))


class _Source:
    """One sampler and its last answer."""

    def __init__(self, sampler: Sampler, interval_s: float, clock: Clock, guard: Guard) -> None:
        self.sampler = sampler
        self.answer: tuple[float, Mapping[str, Any]] = (float("-inf"), {})
        """When it last answered, and what; replaced whole, so that a reader needs no lock."""
        self.job = background_job(f"telemetry-sampler-{sampler.name}", self._turn, MACHINE)
        self.is_stopping = False
        self._interval_s = interval_s
        self._clock = clock
        self._guard = guard
        self.asked_at = math.inf
        """When it was asked that has not come back; infinite where it has."""
        self._failures = 0

    def _turn(self) -> float | None:
        pause_s: float | None = None
        has_ended_itself = True
        try:
            pause_s = None if self.is_stopping else self._ask()
            has_ended_itself = False
        finally:
            if pause_s is None:
                if has_ended_itself:
                    # It raised what is not caught, such as SystemExit: a library that thinks it is the program.
                    ended = RuntimeError("it ended its own thread, and is not asked again")
                    self._guard.report(f"sampling {self.sampler.name}", ended)
                with self._guard.catch(f"closing the {self.sampler.name} sampler"):
                    self.sampler.close()
        return pause_s

    def _ask(self) -> float | None:
        """Take one sample and return how long to wait for the next, or None where there will be none."""
        answered = False
        self.asked_at = self._clock.monotonic()
        try:
            with self._guard.catch(f"sampling {self.sampler.name}"):
                try:
                    sample = dict(self.sampler.sample())
                except NothingToSample:
                    return None
                self.answer = (self._clock.monotonic(), sample)
                answered = True
        finally:
            self.asked_at = math.inf
        self._failures = 0 if answered else self._failures + 1
        return self._interval_s if self._failures < FAILURES_BEFORE_REST else max(REST_S, self._interval_s)
