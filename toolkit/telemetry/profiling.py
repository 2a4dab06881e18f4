"""Timing functions and blocks that somebody suspects: `@log.profile` and `with log.profile_block("forward_pass")`.

A call that is logged stands on the next step record as `profiling/<name>`, in seconds, and in the summary of spans. One
that is not costs two readings of the clock and a comparison.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, TypeVar

from toolkit.telemetry.option_blocks.profiling import ProfilingOptions
from toolkit.telemetry.span_times import MAX_NAMES, AllTimes, SpanTimes
from toolkit.telemetry.spans import timed_function
from toolkit.timing.names import PROFILING_PREFIX

_F = TypeVar("_F", bound=Callable[..., Any])

THE_REST: Final = "(other names)"
"""Names beyond the first 200 share this one: somebody puts a number into the name."""
_LONGEST_NAME: Final = 120
_MAX_WAITING: Final = 10_000
NOTHING: Final = nullcontext()


class Profiling:
    """The profiled names of one session."""

    def __init__(
        self,
        options: ProfilingOptions,
        times: AllTimes,
        closed: deque[Any],
        monotonic: Callable[[], float],
    ) -> None:
        self.is_on = options.enabled
        self._options = options
        self._times = times
        self._closed = closed
        self._monotonic = monotonic
        self.makers: dict[str, Callable[[], ProfiledBlock]] = {}
        """What makes a block of a name that is known; empty where nothing is profiled."""
        self._profiles: dict[str, Profile] = {}
        self._making = threading.Lock()

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
        profile = self._make(_as_name(name or called(function)), min_duration_ms, log_interval)
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            return timed_function(function, lambda: ProfiledBlock(profile))

        monotonic = self._monotonic

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                duration = monotonic() - began
                if duration >= profile.shortest:
                    profile.count_one(duration)

        return call  # type: ignore[return-value]

    def _make(self, name: str, min_duration_ms: float | None, log_interval: int | None) -> Profile:
        with self._making:
            if name not in self._profiles and len(self._profiles) >= MAX_NAMES:
                name = THE_REST
            profile = self._profiles.get(name)
            if profile is None:
                options = self._options
                shortest = options.min_duration_ms if min_duration_ms is None else min_duration_ms
                interval = options.log_interval if log_interval is None else log_interval
                times = self._times.of(PROFILING_PREFIX + name, on_steps=False)
                profile = Profile(name, shortest / 1e3, max(1, interval), times, self._closed)
                profile.monotonic = self._monotonic
                self._times.add_profile(profile)
                self._profiles[name] = profile
            return profile


class Profile:
    """What is known of one profiled name."""

    __slots__ = ("_closed", "_field", "_waiting", "count", "interval", "monotonic", "shortest", "times")

    monotonic: Callable[[], float]

    def __init__(
        self, name: str, shortest: float, interval: int, times: SpanTimes, closed: deque[Any]
    ) -> None:
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
        """Count a call that took long enough, and log it if it is its turn: the first, then each `interval`-th."""
        self.count = count = self.count + 1
        if count == 1 or not count % self.interval:
            self._waiting.append(duration)
            self._closed.append(_Logged(self.times, duration))

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
    """One timed stretch. Nothing in here can fail."""

    __slots__ = ("_began", "_profile")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def __enter__(self) -> ProfiledBlock:
        self._began = self._profile.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        profile = self._profile
        duration = profile.monotonic() - self._began
        if duration >= profile.shortest:
            profile.count_one(duration)


class _Logged:
    """A call as the summary of spans counts it."""

    __slots__ = ("duration", "times")

    def __init__(self, times: SpanTimes, duration: float) -> None:
        self.times = times
        self.duration = duration


def called(function: Any) -> str:
    """Return what a function is called: `MyTrainer.compute_loss`, wherever it was defined."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return str(name or type(function).__name__).rpartition("<locals>.")[2]


def _as_name(name: Any) -> str:
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    return text[:_LONGEST_NAME] or "block"
