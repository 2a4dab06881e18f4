"""The threads that send one receiver its messages."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.mirrors.messages.delivery import REQUEST_TIMEOUT_S, Delivery, deliver
from toolkit.telemetry.mirrors.messages.message import Message, combine
from toolkit.telemetry.mirrors.messages.receiver import Receiver

_MOST_WAITING: Final = 200
_MINUTE_S: Final = 60.0
_LAST_PAUSE_S: Final = 0.2


class Sender:
    """Sends messages to `receiver` one after the other, and calls `report` with the record's fields of each.

    Messages beyond the rate limit are combined into one, and none is dropped without being counted. `put` never waits.
    The last message does not wait for another one in flight: it has a thread of its own.
    """

    def __init__(self, receiver: Receiver, *, report: Callable[[dict[str, Any]], None], guard: Guard) -> None:
        self.receiver = receiver
        self._report = report
        self._guard = guard
        self._changed = threading.Condition()
        self._waiting: list[Message] = []
        self._in_flight: list[Delivery] = []
        self._sent_at: deque[float] = deque(maxlen=receiver.options.per_minute)
        self._deadline: float | None = None
        """When the run must be closed; None while it is running."""
        self._is_over = False
        # Both are started now: an interpreter that is shutting down cannot start threads.
        self._threads = [
            threading.Thread(
                target=self._run,
                args=[is_last],
                name=f"telemetry-{what}-{receiver.options.name}",
                daemon=True,
            )
            for is_last, what in ((False, "messages"), (True, "last-message"))
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def put(self, message: Message) -> None:
        """Have `message` sent."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting = [combine(self._waiting)]
            self._waiting.append(message)
            self._changed.notify_all()

    def hurry(self, last: Message | None, deadline: float) -> None:
        """Send what waits now, combined with `last`, until `deadline` (monotonic)."""
        with self._changed:
            self._waiting += [] if last is None else [last]
            self._deadline = deadline
            self._changed.notify_all()

    def give_up(self, deadline: float) -> None:
        """Wait until `deadline` for what is being sent, and report what was not delivered. Sends nothing later."""
        with self._changed:
            self._changed.wait_for(self._is_idle, max(0.0, deadline - time.monotonic()))
            if not self._is_over:
                self._is_over = True
                for delivery in self._in_flight:
                    self._report(delivery.to_fields("no response before the run closed; it may have arrived"))
                if self._waiting:
                    left = Delivery(self.receiver, combine(self._waiting))
                    self._report(left.to_fields("not sent before the run closed"))
            self._waiting.clear()
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        return not (self._waiting or self._in_flight) or not self._threads[0].is_alive()

    def _run(self, is_last: bool) -> None:
        """Send messages; the thread that `is_last` begins when the run is closing and the other may be busy."""
        while (delivery := self._next(is_last)) is not None:
            failure: str | None = "not sent because of an internal error"
            with self._guard.catch(f"sending messages to {self.receiver.options.name}"):
                failure = deliver(delivery, pause=self._pause, time_left=self._time_left)
            with self._changed:
                self._in_flight.remove(delivery)
                # If it was given up, that is reported already.
                if not self._is_over:
                    self._report(delivery.to_fields(failure))
                self._changed.notify_all()

    def _next(self, is_last: bool) -> Delivery | None:
        """Wait for the next message, combining those beyond the rate limit; None when it is over."""
        with self._changed:
            while not self._is_over:
                now = time.monotonic()
                recent = sum(now - at < _MINUTE_S for at in self._sent_at)
                allowed = self.receiver.options.per_minute - recent
                is_closing = self._deadline is not None
                if self._waiting and (is_closing or (allowed > 0 and not is_last)):
                    count = 1 if len(self._waiting) <= allowed and not is_closing else len(self._waiting)
                    delivery = Delivery(self.receiver, combine(self._waiting[:count]))
                    del self._waiting[:count]
                    self._sent_at.append(now)
                    self._in_flight.append(delivery)
                    return delivery
                is_limited = self._waiting and not is_last
                self._changed.wait(self._sent_at[0] + _MINUTE_S - now if is_limited else None)
            return None

    def _time_left(self) -> float:
        deadline = self._deadline
        return REQUEST_TIMEOUT_S if deadline is None else deadline - time.monotonic()

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt, no longer than the run lasts; False when it is over."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_over or self._deadline is not None, seconds):
                # The run is closing: no time for a long wait.
                self._changed.wait_for(lambda: self._is_over, min(seconds, _LAST_PAUSE_S))
            return not self._is_over
