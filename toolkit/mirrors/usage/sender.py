"""The thread that sends usage events, with a few retries."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from toolkit.core.guard import Guard
from toolkit.mirrors.usage.consent import refused_by
from toolkit.mirrors.usage.event import UsageEvent
from toolkit.mirrors.usage.posthog_client import NotInstalled, ReportNotSent

_GIVE_UP_AFTER: Final = 5
_FIRST_PAUSE_S: Final = 30.0
_MOST_WAITING: Final = 100
_DOING: Final = "sending usage reports"


class UsageSender:
    """Sends events in order; `put` never waits. Retries after a failure, and stops after five failures in a row."""

    def __init__(
        self, send: Callable[[UsageEvent], None], *, guard: Guard, environ: Mapping[str, str] | None = None
    ) -> None:
        self._send = send
        self._guard = guard
        self._environ = os.environ if environ is None else environ
        self._changed = threading.Condition()
        self._waiting: deque[UsageEvent] = deque()
        self._failures = 0
        self._is_off = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def put(self, event: UsageEvent) -> None:
        """Queue `event`."""
        with self._changed:
            if self._is_off or len(self._waiting) >= _MOST_WAITING:
                return
            self._waiting.append(event)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="telemetry-usage-sender", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Try once more to send what waits, at most for `timeout_s`; nothing is sent later."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            left, self._is_off = len(self._waiting), True
            self._waiting.clear()
        if left:
            self._guard.report(
                _DOING, ReportNotSent(f"{left} of them could not be sent before the run closed")
            )

    def _run(self) -> None:
        while (event := self._next()) is not None:
            if refused_by(self._environ) is not None:
                self._switch_off()
                return
            is_last, is_sent = self._is_closing, False
            with self._guard.catch(_DOING):
                self._try(event)
                is_sent = True
            if is_sent:
                self._failures = 0
                self._forget(event)
            elif self._has_to_end(is_last=is_last):
                return

    def _try(self, event: UsageEvent) -> None:
        try:
            self._send(event)
        except NotInstalled:
            self._switch_off()
            raise

    def _forget(self, event: UsageEvent) -> None:
        with self._changed:
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()

    def _has_to_end(self, *, is_last: bool) -> bool:
        """Wait after a failure, with exponential backoff; return whether that was the last attempt."""
        self._failures += 1
        if self._failures >= _GIVE_UP_AFTER and not self._is_off:
            self._switch_off()
            why = f"{self._failures} failures in a row; no more reports are sent"
            self._guard.report("sending further usage reports", ReportNotSent(why))
        with self._changed:
            if is_last or self._is_off:
                return True
            pause_s = _FIRST_PAUSE_S * 2 ** (self._failures - 1)
            self._changed.wait_for(lambda: self._is_closing or self._is_off, pause_s)
            return self._is_off

    def _next(self) -> UsageEvent | None:
        """Wait for the next event; None when there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing or self._is_off)
            return None if self._is_off or not self._waiting else self._waiting[0]

    def _switch_off(self) -> None:
        with self._changed:
            self._is_off = True
            self._waiting.clear()
