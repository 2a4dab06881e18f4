"""Retries: how long to pause, what is said about failures, and a bounded queue that one background thread sends."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from toolkit.telemetry.core.guard import Guard

_T = TypeVar("_T")

_MOST_WAITING: Final = 100
_MOST_FAILURES: Final = 5
_RANDOM: Final = random.Random()
"""Not the module's own, whose sequence belongs to the script."""


def backoff_s(
    failures: int, *, first_s: float, longest_s: float, growth: float = 2.0, spread: float = 0.0
) -> float:
    """Return how long to wait after so many failures in a row: `first_s`, then `growth` times as long each time.

    Of that, up to the share `spread` is left away or added at random, so that not all processes retry at once.
    """
    pause_s = first_s * growth ** min(max(failures, 1) - 1, 60)
    return min(pause_s * _RANDOM.uniform(1.0 - spread, 1.0 + spread), longest_s)


class NotSentError(OSError):
    """An item was not delivered; the text says why."""


class Outbox(Generic[_T]):
    """Sends items in their order; `put` never waits, and what does not fit is left out.

    A failure is reported, and the item tried again after a pause. After five failures in a row nothing more is sent.
    The thread starts with the first item, and a forked child has none.
    """

    def __init__(
        self, name: str, send: Callable[[_T], None], *, guard: Guard, first_pause_s: float = 30.0
    ) -> None:
        self._name = name
        self._send = send
        self._guard = guard
        self._first_pause_s = first_pause_s
        self._changed = threading.Condition()
        self._waiting: deque[_T] = deque()
        self._failures = 0
        self._is_off = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def put(self, item: _T) -> None:
        """Queue `item`."""
        with self._changed:
            if self._is_off or len(self._waiting) >= _MOST_WAITING:
                return
            self._waiting.append(item)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"telemetry-{self._name.replace(' ', '-')}", daemon=True
                )
                self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Try once more to send what waits, at most for `timeout_s`; nothing is sent later."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        left = self._switch_off()
        if left:
            self._report("", f"{left} of them could not be sent before the run closed")

    def _run(self) -> None:
        while (item := self._next()) is not None:
            is_last, is_sent = self._is_closing, False
            with self._guard.catch(f"sending {self._name}"):
                self._send(item)
                is_sent = True
            with self._changed:
                if is_sent and self._waiting:
                    self._waiting.popleft()
                self._failures = 0 if is_sent else self._failures + 1
            if not is_sent and self._has_to_end(is_last=is_last):
                return

    def _has_to_end(self, *, is_last: bool) -> bool:
        """Wait after a failure; return whether that was the last attempt."""
        if self._failures >= _MOST_FAILURES and not self._is_off:
            self._switch_off()
            self._report("further ", f"{self._failures} failures in a row; no more are sent")
        with self._changed:
            if not is_last and not self._is_off:
                pause_s = backoff_s(self._failures, first_s=self._first_pause_s, longest_s=3600.0)
                self._changed.wait_for(lambda: self._is_closing or self._is_off, pause_s)
            return is_last or self._is_off

    def _next(self) -> _T | None:
        """Wait for the next item; None when there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing or self._is_off)
            return None if self._is_off or not self._waiting else self._waiting[0]

    def _switch_off(self) -> int:
        """Send nothing more; return how many wait."""
        with self._changed:
            left, self._is_off = len(self._waiting), True
            self._waiting.clear()
            self._changed.notify_all()
            return left

    def _report(self, which: str, why: str) -> None:
        self._guard.report(f"sending {which}{self._name}", NotSentError(why))


FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
_RECENT_S: Final = 300.0
_MOST_SAID: Final = 10_000


class Backoff:
    """The pause after failures: a second, then twice as long each time, up to a minute."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0
        self.reason: str | None = None
        """The last failure; None after a success."""

    @property
    def is_ready(self) -> bool:
        """Whether it is time to try."""
        return time.monotonic() >= self._not_before

    def failed(self, reason: str) -> None:
        """Wait before the next try."""
        self.reason = reason
        self._failures += 1
        pause_s = backoff_s(self._failures, first_s=FIRST_S, longest_s=LONGEST_S, spread=0.5)
        self._not_before = time.monotonic() + pause_s

    def succeeded(self) -> None:
        """Start again with short pauses."""
        self._failures, self._not_before, self.reason = 0, 0.0, None


@dataclass(slots=True)
class Failures:
    """What failed since the start."""

    errors: int = 0
    last_error: str = ""
    failed_at: float = -math.inf
    """When that was, by the monotonic clock."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held while something is counted, as several threads do."""
    _said: set[str] = field(default_factory=set, repr=False)

    @property
    def recent_error(self) -> str:
        """The last failure if it is not over: what goes on failing is tried again within minutes."""
        return self.last_error if time.monotonic() - self.failed_at < _RECENT_S else ""

    def add(self, reason: str, say: Callable[[str], None] | None) -> None:
        """Count a failure; the first of its kind is said."""
        with self.lock:
            self.errors += 1
            self.last_error, self.failed_at = reason, time.monotonic()
            if len(self._said) >= _MOST_SAID:
                self._said.clear()
            is_new = reason not in self._said
            self._said.add(reason)
        if is_new and say is not None:
            say(reason)
