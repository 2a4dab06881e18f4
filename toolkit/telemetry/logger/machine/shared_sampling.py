"""One sampling of the system for all loggers of a process: they would all measure the same machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

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
        is_shared = isinstance(clock, SystemClock)
        key = (os.getpid(), str(log_dir), interval_s, None if is_shared else id(self))
        while True:
            shared = _living.get(key)
            if shared is None:
                shared = _living.setdefault(key, _Shared(key, log_dir, make_samplers, interval_s, clock))
            shared.guards[id(self)] = guard
            if _living.get(key) is shared:
                break
            # The last of the others has just left it.
            shared.leave(id(self), 0.0)
        self._shared = shared

    def start(self) -> None:
        """Begin, if no other logger has. Raises RuntimeError where the system refuses a thread."""
        self._shared.sampling.start()

    def latest(self) -> dict[str, Any]:
        """Return the newest value of every metric whose source answered lately; old values are left out."""
        return self._shared.sampling.latest()

    def stale(self) -> list[str]:
        """Return the names of the sources that were asked and have not come back: a hung driver or file system."""
        return self._shared.sampling.stale()

    def stop(self, timeout_s: float) -> None:
        """Stop the sampling if no other logger needs it; return within `timeout_s` whatever its sources do."""
        self._shared.leave(id(self), timeout_s)


class _Shared:
    """The sampling of some loggers, and their guards."""

    def __init__(
        self,
        key: Hashable,
        log_dir: Path,
        make_samplers: Callable[[Path, Guard], list[Sampler]],
        interval_s: float,
        clock: Clock,
    ) -> None:
        self._key = key
        self.guards: dict[int, Guard] = {}
        guard = _GuardOfAll(self.guards)
        self.sampling = SystemSampling(
            make_samplers(log_dir, guard), interval_s=interval_s, clock=clock, guard=guard
        )

    def leave(self, member: int, timeout_s: float) -> None:
        """Take a logger off; without any, stop."""
        self.guards.pop(member, None)
        if not self.guards:
            # First: who comes from now on makes another. Who came just before has a guard here.
            if _living.get(self._key) is self:
                _living.pop(self._key, None)
            if not self.guards:
                self.sampling.stop(timeout_s)


class _GuardOfAll(Guard):
    """Reports a failure to the guards of all loggers that use the samples."""

    def __init__(self, guards: dict[int, Guard]) -> None:
        super().__init__()
        self._guards = guards

    def report(self, doing: str, error: BaseException) -> None:
        """Report a failure to each of them."""
        for guard in list(self._guards.values()):
            guard.report(doing, error)


_living: dict[Hashable, _Shared] = {}
