"""The thread that sends one receiver its messages."""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.mirrors.messages.delivery import FAILED, REQUEST_TIMEOUT_S, Delivery, deliver
from toolkit.telemetry.mirrors.messages.message import Message, combine, combine_with_last
from toolkit.telemetry.mirrors.messages.receiver import Receiver

_MOST_WAITING: Final = 200


class _InFlight:
    """A message that is being sent."""

    __slots__ = ("attempts", "message", "since")

    def __init__(self, message: Message, since: float) -> None:
        self.message = message
        self.since = since
        self.attempts = 0


class Sender:
    """Sends messages to `receiver` one after the other, and calls `report` with the outcome of each.

    Messages beyond the rate limit are combined into one, and none is dropped without being counted. `put` never waits.
    The last message does not wait for another one in flight: it has a thread of its own.
    """

    def __init__(self, receiver: Receiver, *, report: Callable[[Delivery], None], guard: Guard) -> None:
        self.receiver = receiver
        self._report = report
        self._guard = guard
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Message, float]] = deque()
        self._uncounted: Counter[str] = Counter()
        self._in_flight: list[_InFlight] = []
        self._deadline: float | None = None
        """When the run must be closed; None while it is running."""
        self._is_over = False
        self._tls: ssl.SSLContext | None = None
        self._bucket = TokenBucket(receiver.per_minute, time.monotonic())
        # Both are started now: an interpreter that is shutting down cannot start threads.
        self._thread, self._last_thread = (
            threading.Thread(
                target=self._run, args=[is_last], name=f"telemetry-{what}-{receiver.name}", daemon=True
            )
            for is_last, what in ((False, "messages"), (True, "last-message"))
        )

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._last_thread.start()

    def put(self, message: Message) -> None:
        """Have `message` sent."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                oldest, _ = self._waiting.popleft()
                self._uncounted[oldest.occasion] += oldest.message_count
            self._waiting.append((message, time.monotonic()))
            self._changed.notify_all()

    def hurry(self, last: Message | None, deadline: float) -> None:
        """Send what waits now, combined with `last`, until `deadline` (monotonic)."""
        with self._changed:
            messages = [message for message, _ in self._waiting]
            since = self._waiting[0][1] if self._waiting else time.monotonic()
            if last is not None:
                more, self._uncounted = self._uncounted, Counter()
                self._waiting = deque([(combine_with_last(last, messages, more=more), since)])
            elif len(messages) > 1:
                self._waiting = deque([(self._combined(messages), since)])
            self._deadline = deadline
            self._changed.notify_all()

    def give_up(self, deadline: float) -> None:
        """Wait until `deadline` for what is being sent, and report what was not delivered. Sends nothing later."""
        with self._changed:
            self._changed.wait_for(self._is_idle, max(0.0, deadline - time.monotonic()))
            if not self._is_over:
                self._is_over = True
                for delivery in self._what_is_left():
                    self._report(delivery)
            self._waiting.clear()
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        is_done = not self._waiting and not self._in_flight
        return is_done or not self._thread.is_alive()

    def _what_is_left(self) -> list[Delivery]:
        """Return what is not delivered, with the reason."""
        left = []
        for sending in self._in_flight:
            why = "no response before the run closed; it may have arrived"
            left.append(self._undelivered(sending.message, sending.since, sending.attempts, why))
        if self._waiting:
            messages = [message for message, _ in self._waiting]
            message = messages[0] if len(messages) == 1 else self._combined(messages)
            left.append(self._undelivered(message, self._waiting[0][1], 0, _TOO_LATE))
        return left

    def _undelivered(self, message: Message, since: float, attempts: int, why: str) -> Delivery:
        return Delivery(
            receiver=self.receiver.name,
            service=self.receiver.service,
            message=message,
            status=FAILED,
            attempts=attempts,
            seconds=time.monotonic() - since,
            reason=f"{self.receiver.address.shown}: {why}",
        )

    def _run(self, is_last: bool) -> None:
        """Send messages; the thread that `is_last` begins when the run is closing and the other may be busy."""
        while (taken := self._next(is_last)) is not None:
            self._send(taken)

    def _send(self, taken: _InFlight) -> None:
        with self._guard.catch(f"sending messages to {self.receiver.name}"):
            self._deliver(taken)
        with self._changed:
            if taken in self._in_flight:
                self._in_flight.remove(taken)
                if not self._is_over:
                    why = "not sent because of an internal error"
                    self._report(self._undelivered(taken.message, taken.since, taken.attempts, why))
            self._changed.notify_all()

    def _next(self, is_last: bool) -> _InFlight | None:
        """Wait for the next message, combining those beyond the rate limit; None when it is over."""
        bucket = self._bucket
        with self._changed:
            while True:
                self._changed.wait_for(
                    lambda: self._is_over or (self._waiting and (not is_last or self._deadline is not None))
                )
                if self._is_over:
                    return None
                now = time.monotonic()
                wait_s = 0.0 if self._deadline is not None else bucket.wait_s(now)
                if wait_s <= 0.0:
                    break
                self._changed.wait(wait_s)
            allowed = bucket.left(now)
            bucket.use(now)
            if len(self._waiting) == 1 or len(self._waiting) <= allowed:
                taken = _InFlight(*self._waiting.popleft())
            else:
                messages = [message for message, _ in self._waiting]
                taken = _InFlight(self._combined(messages), self._waiting[0][1])
                self._waiting.clear()
            self._in_flight.append(taken)
            return taken

    def _combined(self, messages: list[Message]) -> Message:
        more, self._uncounted = self._uncounted, Counter()
        return combine(messages, more=more)

    def _deliver(self, taken: _InFlight) -> None:
        if self.receiver.address.is_encrypted and self._tls is None:
            # Loading the system's certificates takes a while; nothing else waits for it here.
            with suppress(OSError):
                # The request reports certificates that cannot be read.
                self._tls = ssl.create_default_context()
        delivery = deliver(
            self.receiver,
            taken.message,
            pause=self._pause,
            time_left=self._time_left,
            on_attempt=partial(setattr, taken, "attempts"),
            tls=self._tls,
        )
        with self._changed:
            # If it was given up, that is reported already.
            if not self._is_over:
                self._in_flight.remove(taken)
                self._report(replace(delivery, seconds=time.monotonic() - taken.since))

    def _time_left(self) -> float:
        deadline = self._deadline
        return REQUEST_TIMEOUT_S if deadline is None else deadline - time.monotonic()

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt, no longer than the run lasts; False when it is over."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._deadline is not None, seconds)
            if self._deadline is not None and not self._is_over:
                # The run is closing: no time for a long wait.
                until = min(until, time.monotonic() + _LAST_PAUSE_S)
                self._changed.wait_for(lambda: self._is_over, max(0.0, until - time.monotonic()))
            return not self._is_over


_LAST_PAUSE_S: Final = 0.2
_TOO_LATE: Final = "not sent before the run closed"


class TokenBucket:
    """Rate limit: `per_minute` messages at once after a pause, then one as each becomes allowed."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._most = float(per_minute)
        self._per_second = per_minute / 60.0
        self._left = self._most
        self._at = now

    def left(self, now: float) -> int:
        """Return how many may be sent at `now` (monotonic)."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        return int(self._left + 1e-9)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next one may be sent."""
        return 0.0 if self.left(now) >= 1 else (1.0 - self._left) / self._per_second

    def use(self, now: float) -> None:
        """Count one sent at `now`; if none was allowed, the next waits longer."""
        self.left(now)
        self._left = max(-self._most, self._left - 1.0)
