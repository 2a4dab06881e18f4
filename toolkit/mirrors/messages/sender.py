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

from toolkit.core.guard import Guard
from toolkit.mirrors.messages.delivery import FAILED, REQUEST_TIMEOUT_S, Delivery, deliver
from toolkit.mirrors.messages.digest import fold, fold_into
from toolkit.mirrors.messages.message import Message
from toolkit.mirrors.messages.receiver import Receiver

_MOST_WAITING: Final = 200


class _InFlight:
    """A message that is being sent."""

    __slots__ = ("attempts", "message", "since")

    def __init__(self, message: Message, since: float) -> None:
        self.message = message
        self.since = since
        self.attempts = 0


class Sender:
    """Sends messages to `receiver` one after the other, and tells `report` what came of each.

    More messages than the receiver may be sent are told as one, and none is dropped without being counted. Whoever
    puts a message never waits. The last one does not wait for another that is in flight: it has a thread of its own.
    """

    def __init__(self, receiver: Receiver, *, report: Callable[[Delivery], None], guard: Guard) -> None:
        self.receiver = receiver
        self._report = report
        self._guard = guard
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Message, float]] = deque()
        self._uncounted: Counter[str] = Counter()
        self._last: tuple[Message, float] | None = None
        """The last message, where another one was in flight when it came."""
        self._in_flight: list[_InFlight] = []
        self._deadline: float | None = None
        """When the run is over for good; None while it goes on."""
        self._is_over = False
        self._tls: ssl.SSLContext | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"telemetry-messages-{receiver.name}", daemon=True
        )
        # Begun with the run: an interpreter that is ending may start no more threads.
        self._thread_of_the_last = threading.Thread(
            target=self._run_last, name=f"telemetry-last-message-{receiver.name}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._thread_of_the_last.start()

    def put(self, message: Message) -> None:
        """Have `message` sent."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                oldest, _ = self._waiting.popleft()
                self._uncounted[oldest.occasion] += oldest.tells_of
            self._waiting.append((message, time.monotonic()))
            self._changed.notify_all()

    def hurry(self, last: Message | None, deadline: float) -> None:
        """Send what waits at once, in one message with `last`; there is time until `deadline` (monotonic)."""
        with self._changed:
            messages = [message for message, _ in self._waiting]
            since = self._waiting[0][1] if self._waiting else time.monotonic()
            if last is not None:
                told = (self._told_with(last, messages), since)
                is_busy = bool(self._in_flight) and self._thread_of_the_last.is_alive()
                self._waiting = deque([] if is_busy else [told])
                self._last = told if is_busy else None
            elif len(messages) > 1:
                self._waiting = deque([(self._folded(messages), since)])
            self._deadline = deadline
            self._changed.notify_all()

    def give_up(self, deadline: float) -> None:
        """Wait until `deadline` for what was put in a hurry, and report what did not get there. Sends nothing later."""
        with self._changed:
            self._changed.wait_for(self._is_idle, max(0.0, deadline - time.monotonic()))
            if not self._is_over:
                self._is_over = True
                for delivery in self._what_is_left():
                    self._report(delivery)
            self._waiting.clear()
            self._last = None
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        is_done = not self._waiting and self._last is None and not self._in_flight
        return is_done or not self._thread.is_alive()

    def _what_is_left(self) -> list[Delivery]:
        """Return what is not delivered, and what is known of it."""
        left = []
        for sending in self._in_flight:
            why = "no answer yet; it may have arrived when the run closed"
            left.append(self._undelivered(sending.message, sending.since, sending.attempts, why))
        if self._last is not None:
            why = "not sent any more when the run closed"
            left.append(self._undelivered(*self._last, 0, why))
        if self._waiting:
            messages = [message for message, _ in self._waiting]
            message = messages[0] if len(messages) == 1 else self._folded(messages)
            why = "not sent any more when the run closed"
            left.append(self._undelivered(message, self._waiting[0][1], 0, why))
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

    def _run(self) -> None:
        bucket = TokenBucket(self.receiver.per_minute, time.monotonic())
        while (taken := self._take(bucket)) is not None:
            self._send(taken)

    def _run_last(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._last is not None or self._is_over)
            if self._last is None or self._is_over:
                return
            taken = _InFlight(*self._last)
            self._last = None
            self._in_flight.append(taken)
        self._send(taken)

    def _send(self, taken: _InFlight) -> None:
        with self._guard.catch(f"sending messages to {self.receiver.name}"):
            self._deliver(taken)
        with self._changed:
            if taken in self._in_flight:
                self._in_flight.remove(taken)
                if not self._is_over:
                    why = "not sent, for a fault of our own"
                    self._report(self._undelivered(taken.message, taken.since, taken.attempts, why))
            self._changed.notify_all()

    def _take(self, bucket: TokenBucket) -> _InFlight | None:
        """Wait for the next message, folding those that are too many; None when it is over."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if self._is_over:
                    return None
                now = time.monotonic()
                is_last = self._deadline is not None
                wait_s = 0.0 if is_last else bucket.wait_s(now)
                if wait_s <= 0.0:
                    break
                self._changed.wait(wait_s)
            allowed = bucket.left(now)
            bucket.use(now)
            if len(self._waiting) == 1 or len(self._waiting) <= allowed:
                taken = _InFlight(*self._waiting.popleft())
            else:
                messages = [message for message, _ in self._waiting]
                taken = _InFlight(self._folded(messages), self._waiting[0][1])
                self._waiting.clear()
            self._in_flight.append(taken)
            return taken

    def _told_with(self, last: Message, messages: list[Message]) -> Message:
        told = fold_into(last, messages, more=self._uncounted)
        self._uncounted = Counter()
        return told

    def _folded(self, messages: list[Message]) -> Message:
        folded = fold(messages, more=self._uncounted)
        self._uncounted = Counter()
        return folded

    def _deliver(self, taken: _InFlight) -> None:
        if self.receiver.address.is_encrypted and self._tls is None:
            # Reading the machine's certificates takes a while, and nobody else waits for it here.
            with suppress(OSError):
                # Certificates that cannot be read are the request's to tell of.
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
            # Where it was given up, that was reported.
            if not self._is_over:
                self._in_flight.remove(taken)
                self._report(replace(delivery, seconds=time.monotonic() - taken.since))

    def _time_left(self) -> float:
        deadline = self._deadline
        return REQUEST_TIMEOUT_S if deadline is None else deadline - time.monotonic()

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try, no longer than the run lasts; False when it is over."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._deadline is not None, seconds)
            if self._deadline is not None and not self._is_over:
                # The end leaves no time for a long wait.
                until = min(until, time.monotonic() + _LAST_PAUSE_S)
                self._changed.wait_for(lambda: self._is_over, max(0.0, until - time.monotonic()))
            return not self._is_over


_LAST_PAUSE_S: Final = 0.2


class TokenBucket:
    """So many messages a minute: that many at once after a calm, and then one as each becomes allowed."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._most = float(per_minute)
        self._per_second = per_minute / 60.0
        self._left = self._most
        self._at = now

    def left(self, now: float) -> int:
        """Return how many may be sent at `now`, by a monotonic clock."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        return int(self._left + 1e-9)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next one may be sent."""
        return 0.0 if self.left(now) >= 1 else (1.0 - self._left) / self._per_second

    def use(self, now: float) -> None:
        """Note that one is sent at `now`; where none was allowed, the next waits the longer."""
        self.left(now)
        self._left = max(-self._most, self._left - 1.0)
