"""Retries: how long to pause, what is said about failures, and a bounded queue that one background thread sends."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from toolkit.telemetry.core.background import own_thread_job
from toolkit.telemetry.core.guard import Guard

_T = TypeVar("_T")

MOST_ATTEMPTS: Final = 5
_MOST_WAITING: Final = 100
_LONGEST_ASKED_S: Final = 120.0
"""Even if the other side asks for a longer pause."""
_LAST_PAUSE_S: Final = 0.2
_MINUTE_S: Final = 60.0
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

    def __init__(
        self, why: str, *, status: int = 0, most_attempts: int = MOST_ATTEMPTS, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(why)
        self.status = status
        """Of the answer; 0 if there was none."""
        self.most_attempts = most_attempts
        """How often it may be tried in all."""
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Delivery(Generic[_T]):
    """An item on its way."""

    item: _T
    attempts: int = 0
    began: float = field(default_factory=time.monotonic)
    tried: float = 0.0
    pause_s: float = 0.0
    """From the last attempt to the next one."""


class Outbox(Generic[_T]):
    """Sends items in their order on a thread of its own, and calls `on_result` with each and its failure if any.

    `put` never waits. A `NotSentError` of `send` is retried after a pause, up to five times. Items beyond `per_minute`
    or a hundred that wait become one by `combine`; without it, those beyond a hundred are left out.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[_T], None],
        *,
        on_result: Callable[[Delivery[_T], NotSentError | None], None],
        guard: Guard,
        first_pause_s: float = 1.0,
        combine: Callable[[Sequence[_T]], _T] | None = None,
        per_minute: float = math.inf,
    ) -> None:
        self._name = name
        self._send = send
        self._on_result = on_result
        self._guard = guard
        self._first_pause_s = first_pause_s
        self._combine = combine
        self._per_minute = per_minute
        self._lock = threading.Lock()
        self._waiting: list[_T] = []
        self._in_flight: Delivery[_T] | None = None
        self._sent_at: deque[float] = deque()
        """When something was sent in the last minute."""
        self._is_over = False
        self._job = own_thread_job(f"telemetry-{name.replace(' ', '-')}", self._turn)

    def start(self) -> None:
        """Start the thread, which the end of a process may not; raises RuntimeError where the system refuses one."""
        self._job.start()

    def put(self, item: _T) -> None:
        """Queue `item`."""
        with self._lock:
            is_full = len(self._waiting) >= _MOST_WAITING
            if self._is_over or (is_full and self._combine is None):
                return
            if is_full and self._combine is not None:
                self._waiting = [self._combine(self._waiting)]
            self._waiting.append(item)
        # Where the system still refuses a thread, the item is reported at the end.
        with suppress(RuntimeError):
            self._job.start()
        self._job.wake()

    def hurry(self) -> None:
        """Send what waits now, at once and as one item if that can be; pauses become short."""
        self._job.is_closing = True
        self._job.wake()

    def close(self, deadline: float) -> None:
        """Wait until `deadline` (monotonic) for what is to be sent, and report the rest; nothing is sent later."""
        self.hurry()
        if self._job.is_started:
            self._job.join(deadline - time.monotonic())
        with self._lock:
            in_flight, self._in_flight, self._is_over = self._in_flight, None, True
            if in_flight is not None:
                left = NotSentError("no response before the run closed; it may have arrived")
                self._on_result(in_flight, left)
            while self._waiting:
                self._on_result(self._first(), NotSentError("not sent before the run closed"))

    def _turn(self) -> float | None:
        """Send what may be sent now; return the seconds until the next attempt, or None when it is over."""
        with self._lock:
            now, is_closing = time.monotonic(), self._job.is_closing
            while self._sent_at and now - self._sent_at[0] >= _MINUTE_S:
                self._sent_at.popleft()
            if self._in_flight is None and self._waiting and not self._is_over:
                allowed = math.inf if is_closing else self._per_minute - len(self._sent_at)
                if allowed <= 0:
                    return self._sent_at[0] + _MINUTE_S - now
                self._in_flight = self._first(is_all=is_closing or len(self._waiting) > allowed)
                self._sent_at.append(now)
            delivery = self._in_flight
            if delivery is None:
                return None if is_closing else math.inf
            pause_s = min(delivery.pause_s, _LAST_PAUSE_S) if is_closing else delivery.pause_s
        if (left_s := delivery.tried + pause_s - now) > 0.0:
            return left_s
        self._try(delivery)
        return 0.0

    def _first(self, *, is_all: bool = True) -> Delivery[_T]:
        """Take out the first item that waits, or, if they can be combined, all of them as one."""
        if is_all and self._combine is not None:
            self._waiting = [self._combine(self._waiting)]
        return Delivery(self._waiting.pop(0))

    def _try(self, delivery: Delivery[_T]) -> None:
        """Send an item, and report it unless it is to be tried again."""
        delivery.attempts += 1
        failure: NotSentError | None = NotSentError("not sent because of an internal error", most_attempts=1)
        with self._guard.catch(f"sending {self._name}"):
            try:
                self._send(delivery.item)
                failure = None
            except NotSentError as error:
                failure = error
        delivery.tried = time.monotonic()
        if failure is not None and delivery.attempts < failure.most_attempts:
            first_s = self._first_pause_s
            pause_s = backoff_s(delivery.attempts, first_s=first_s, longest_s=3600.0, growth=3.0, spread=0.5)
            delivery.pause_s = max(pause_s, min(failure.retry_after_s, _LONGEST_ASKED_S))
            return
        with self._lock:
            # What was not sent in time is reported already.
            if not self._is_over:
                self._in_flight = None
                self._on_result(delivery, failure)


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
