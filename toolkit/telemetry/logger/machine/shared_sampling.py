"""One sampling of the system for all loggers of a process: they would all measure the same machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path

from toolkit.telemetry.core.clock import Clock, SystemClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.sampler import Sampler
from toolkit.telemetry.logger.machine.samplers.sampling import SystemSampling


class SharedSampling:
    """What one logger sees of the samples; the last logger that stops ends the sampling.

    `make_samplers` is given the log directory and the guard that the samplers report to. No lock is taken: a signal
    handler may close a logger while another one is being made.
    """

    def __init__(
        self,
        log_dir: Path,
        make_samplers: Callable[[Path, Guard], list[Sampler]],
        *,
        interval_s: float,
        clock: Clock,
        guard: Guard,
    ) -> None:
        # A forked child has no threads of its parent's, and a clock that a test sets is its own.
        own = None if isinstance(clock, SystemClock) else id(self)
        self._key = (os.getpid(), str(log_dir), interval_s, own)
        shared = _living.get(self._key)
        if shared is None:
            guards = _Guards()
            samplers = make_samplers(log_dir, guards)
            sampling = SystemSampling(samplers, interval_s=interval_s, clock=clock, guard=guards)
            shared = _living.setdefault(self._key, (sampling, guards))
        self._sampling, self._guards = shared
        self._guards.members[id(self)] = guard
        self.start = self._sampling.start
        self.latest, self.stale = self._sampling.latest, self._sampling.stale

    def stop(self, timeout_s: float) -> None:
        """Stop the sampling if no other logger needs it; return within `timeout_s` whatever its sources do."""
        self._guards.members.pop(id(self), None)
        if not self._guards.members:
            _living.pop(self._key, None)
            self._sampling.stop(timeout_s)


class _Guards(Guard):
    """Reports a failure to the guards of all loggers that use the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[int, Guard] = {}

    def report(self, doing: str, error: BaseException) -> None:
        """Report a failure to each of them."""
        for guard in list(self.members.values()):
            guard.report(doing, error)


_living: dict[Hashable, tuple[SystemSampling, _Guards]] = {}
