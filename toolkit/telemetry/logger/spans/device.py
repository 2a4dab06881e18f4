"""Spans timed by the GPU's own clock, without waiting for it.

Two events are put into the device's queue, one before the work and one after it. They are asked for later, and always
by the thread that queued them: a question from another thread would spoil a graph capture that is under way.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.spans.span import FoldedSpan, Span

_MAX_UNDER_WAY: Final = 256
"""Two events each: with many more the queue of the device itself would be full, and queueing work would block."""


class DeviceTimer:
    """Times spans on the current CUDA device; without one it does nothing."""

    def __init__(self, guard: Guard, write: Callable[[Span, float], None]) -> None:
        self.guard = guard
        self.skipped = 0
        """Spans that were not timed: captured into a graph, or with too many before them still under way."""
        self._write = write
        self._idle: list[Any] = []
        self._under_way: deque[tuple[Any, Any, Span | FoldedSpan]] = deque()

    def mark(self) -> Any:
        """Put an event into the queue of the current stream and return it; None where that cannot be done."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        if torch.cuda.is_current_stream_capturing() or len(self._under_way) >= _MAX_UNDER_WAY:
            self.skipped += 1
            return None
        event = self._idle.pop() if self._idle else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self, first: Any, span: Span | FoldedSpan) -> None:
        """Put the second event of `span` after its work."""
        last = self.mark()
        if last is None:
            self._idle.append(first)
        else:
            self._under_way.append((first, last, span))

    def settle(self) -> None:
        """Add up what the device has got done; what it has not is left for the next time."""
        torch = sys.modules.get("torch")
        if torch is None or not self._under_way or torch.cuda.is_current_stream_capturing():
            return
        while self._under_way and self._under_way[0][1].query():
            first, last, span = self._under_way.popleft()
            seconds = first.elapsed_time(last) / 1000.0
            self._idle += (first, last)
            span.times.device_seconds += seconds
            if isinstance(span, Span):
                self._write(span, seconds)


class DeviceSpan:
    """A span that is timed by both clocks: the host's, which queues the work, and the device's, which does it."""

    __slots__ = ("_first", "_timer", "timed")

    def __init__(self, timer: DeviceTimer, span: Span | FoldedSpan) -> None:
        self._timer = timer
        self.timed = span
        """The span by the host's clock, which is also the one that has a name, an id and attributes."""
        self._first: Any = None

    def __enter__(self) -> DeviceSpan:
        self.timed.__enter__()
        timer = self._timer
        with timer.guard.catch("timing on the device"):
            timer.settle()
            self._first = timer.mark()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._timer.guard.catch("timing on the device"):
            self._finish()
        self.timed.__exit__(kind, error, trace)

    def stop(self, stop_time: float | None = None, error: BaseException | str | None = None) -> None:
        """End it."""
        with self._timer.guard.catch("timing on the device"):
            self._finish()
        self.timed.stop(stop_time, error)

    def _finish(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            self._timer.finish(first, self.timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.timed, name)
