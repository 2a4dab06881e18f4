"""Timing of single functions and blocks: `@log.profile` and `with log.profile_block("forward_pass")`.

A call that is logged is on the next step record as `profiling/<name>`, in seconds, and in the summary of spans. One
that is not costs two readings of the clock and a comparison.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from toolkit.telemetry.core.checks import Check, OptionsError, number, whole
from toolkit.telemetry.core.decorators import decorated_inside, wrap_calls
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.options.blocks import ProfilingOptions
from toolkit.telemetry.logger.spans.totals import MAX_NAMES, SpanTimes, SpanTotals
from toolkit.telemetry.timing.names import PROFILING_PREFIX

_F = TypeVar("_F", bound=Callable[..., Any])

THE_REST: Final = "(other names)"
"""Names beyond the first 200 share this one: names with a number in them would be endless."""
_LONGEST_NAME: Final = 120
_DURATION_MS: Final = number(0, 3_600_000)
_INTERVAL: Final = whole(1)
_MAX_WAITING: Final = 10_000
NOTHING: Final = nullcontext()


class Profiling:
    """The profiled names of one session."""

    def __init__(
        self,
        options: ProfilingOptions,
        times: SpanTotals,
        closed: deque[Any],
        monotonic: Callable[[], float],
        guard: Guard,
    ) -> None:
        self.is_on = options.enabled
        self._options = options
        self._times = times
        self._closed = closed
        self._monotonic = monotonic
        self._guard = guard
        self.makers: dict[str, Callable[[], ProfiledBlock]] = {}
        """What makes a block of a name that is known; empty where nothing is profiled."""
        self._profiles: dict[str, Profile] = {}
        # A signal handler may make one in the middle of one that is being made.
        self._making = threading.RLock()

    def block(
        self, name: Any, min_duration_ms: float | None = None, log_interval: int | None = None
    ) -> AbstractContextManager[object]:
        """Return a block to be timed; one of the same name keeps the limits that the first one had."""
        if not self.is_on:
            return NOTHING
        profile = self._make(_as_name(name), min_duration_ms, log_interval)
        if isinstance(name, str) and len(self.makers) < MAX_NAMES:
            self.makers[name] = functools.partial(ProfiledBlock, profile)
        return ProfiledBlock(profile)

    def switch_off(self) -> None:
        """Time nothing any more."""
        self.is_on = False
        self.makers.clear()

    def function(
        self, function: _F, name: str | None, min_duration_ms: float | None, log_interval: int | None
    ) -> _F:
        """Return `function` with each of its calls timed; itself where nothing is profiled."""
        if not self.is_on:
            return function
        inside = decorated_inside(
            function, lambda found: self.function(found, name, min_duration_ms, log_interval)
        )
        if inside is not None:
            return inside  # type: ignore[no-any-return]
        if inspect.isgeneratorfunction(function):
            # What is done with its values meanwhile would count as its time.
            return function
        profile = self._make(_as_name(name or called(function)), min_duration_ms, log_interval)
        return wrap_calls(function, functools.partial(ProfiledBlock, profile))

    def _make(self, name: str, min_duration_ms: float | None, log_interval: int | None) -> Profile:
        with self._making:
            if name not in self._profiles and len(self._profiles) >= MAX_NAMES:
                name = THE_REST
            profile = self._profiles.get(name)
            if profile is None:
                shortest = self._limit(name, "min_duration_ms", min_duration_ms, _DURATION_MS)
                interval = int(self._limit(name, "log_interval", log_interval, _INTERVAL))
                times = self._times.of(PROFILING_PREFIX + name, on_steps=False)
                profile = Profile(name, shortest / 1e3, interval, times, self._closed, self._monotonic)
                self._times.add_profile(times, profile.put_on)
                self._profiles[name] = profile
            return profile

    def _limit(self, name: str, option: str, given: Any, check: Check[float] | Check[int]) -> float:
        """Return a limit that was given with a name; the option's where none was, or a wrong one."""
        if given is not None:
            try:
                return check(f"profiling {name}: {option}", given)
            except OptionsError as error:
                self._guard.report_misuse(str(error))
        return float(getattr(self._options, option))


class Profile:
    """What is known of one profiled name."""

    def __init__(
        self,
        name: str,
        shortest: float,
        interval: int,
        times: SpanTimes,
        closed: deque[Any],
        monotonic: Callable[[], float],
    ) -> None:
        self.monotonic = monotonic
        self.shortest = shortest
        """Seconds; calls that take less are not counted."""
        self.interval = interval
        self.times = times
        self.count = 0
        self._field = PROFILING_PREFIX + name
        self._closed = closed
        self._waiting: deque[float] = deque(maxlen=_MAX_WAITING)
        """Durations for the next step record."""

    def count_one(self, duration: float) -> None:
        """Count a call that took long enough, and log it if it is its turn: the first, then each `interval`-th.

        Nothing in here can fail.
        """
        self.count = count = self.count + 1
        if count == 1 or not count % self.interval:
            self._waiting.append(duration)
            logged = _Logged()
            logged.times, logged.duration = self.times, duration
            self._closed.append(logged)

    def put_on(self, fields: dict[str, Any]) -> None:
        """Put what was logged since the last call on a step record: the mean and, of several, the longest."""
        waiting = self._waiting
        # Other threads append meanwhile: no more than there are now.
        taken = [waiting.popleft() for _ in range(len(waiting))]
        if taken:
            fields[self._field] = sum(taken) / len(taken)
            if len(taken) > 1:
                fields[f"{self._field}/max"] = max(taken)


class ProfiledBlock:
    """One timed interval. Nothing in here can fail."""

    __slots__ = ("_began", "_profile")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def __enter__(self) -> ProfiledBlock:
        self._began = self._profile.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        profile = self._profile
        duration = profile.monotonic() - self._began
        if duration >= profile.shortest:
            profile.count_one(duration)


class _Logged:
    """A call as the summary of spans counts it; its fields are set from outside, which saves a call."""

    __slots__ = ("duration", "times")

    times: SpanTimes
    duration: float


def called(function: Any) -> str:
    """Return what a function is called: `MyTrainer.compute_loss`, wherever it was defined."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(name or type(function).__name__).rpartition("<locals>.")[2]


def _as_name(name: Any) -> str:
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    return text[:_LONGEST_NAME] or "block"
