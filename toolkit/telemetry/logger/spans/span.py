"""Spans: parts of the work with a beginning, an end, and what was known of them.

Short, frequent ones are `FoldedSpan`s: their times are added up, which costs little more than reading the clock twice.
The others are `Span`s, with a place in a tree and a record of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from threading import get_ident
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from toolkit.telemetry.core.clock import WallTimes
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.records.step_gate import StepGate
from toolkit.telemetry.logger.spans.ledger_meter import LedgerMeter
from toolkit.telemetry.logger.spans.totals import SpanTimes
from toolkit.telemetry.timing.names import OF_A_STEP

if TYPE_CHECKING:
    from collections import deque

NO_FAILURES: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that say that something is at its end, as the last batch of an epoch does."""


class CurrentSpan:
    """The innermost open span of one run, on this thread or in this task.

    All runs share one context variable: a context keeps every variable that was ever set in it.
    """

    __slots__ = ()

    def get(self) -> Span | None:
        """Return it; None where there is none."""
        return _OPEN_SPANS.get().get(self)

    def set(self, span: Span | None) -> None:
        """Change it, for this thread or task alone."""
        spans = dict(_OPEN_SPANS.get())
        if span is None:
            spans.pop(self, None)
        else:
            spans[self] = span
        _OPEN_SPANS.set(spans)


_OPEN_SPANS: ContextVar[Mapping[CurrentSpan, Span]] = ContextVar("open_spans", default=MappingProxyType({}))


class _Recorder(Protocol):
    """What a span needs of the `SpanRecorder` that it belongs to."""

    gate: StepGate
    guard: Guard
    meter: LedgerMeter
    monotonic: Callable[[], float]
    walls: WallTimes
    current: CurrentSpan
    closed: deque[FoldedSpan | Span]

    def begin(self, span: Span) -> None: ...
    def end(self, span: Span) -> None: ...
    def unwind(self, span: Span) -> None: ...
    def enter_from_elsewhere(self, span: FoldedSpan, now: float) -> None: ...
    def end_folded_at(self, span: FoldedSpan, stop_time: Any) -> None: ...
    def keep_failed(self, span: FoldedSpan, error: BaseException | str | None) -> None: ...
    def say_stopped_twice(self, name: str) -> None: ...
    def put_event(
        self, span: Span | None, span_name: str, name: str, attributes: Mapping[str, Any], time: float | None
    ) -> None: ...
    def innermost(self) -> Span | None: ...
    def as_time(self, given: Any) -> float | None: ...


class NoSpan:
    """A span that is not recorded."""

    __slots__ = ()

    id: str | None = None
    parent_id: str | None = None
    name = ""
    duration: float | None = None

    @property
    def start(self) -> float | None:
        """None: it never began."""
        return None

    @property
    def attributes(self) -> dict[str, Any]:
        """Nothing is kept here."""
        return {}

    def stop(self, *_: Any, **__: Any) -> None:
        """Do nothing, like every other call of it."""

    set = set_all = event = event_with = fail = stop

    def __enter__(self) -> NoSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return None


NO_SPAN = NoSpan()


class _Recorded:
    """What a caller may do with a span that is recorded."""

    __slots__ = ()

    recorder: _Recorder
    attributes: dict[str, Any]

    def set(self, **attributes: Any) -> None:
        """Say more of it."""
        self.attributes.update(attributes)

    def set_all(self, attributes: Mapping[str, Any]) -> None:
        """Say more of it, by whatever names."""
        with self.recorder.guard.catch("reading a span's attributes"):
            self.attributes.update(attributes)

    def event(self, name: str, /, **attributes: Any) -> None:
        """Write an event of this span."""
        self.event_with(name, attributes)

    def event_with(self, name: str, attributes: Mapping[str, Any], time: float | None = None) -> None:
        """Write an event of this span, now or at a wall time."""
        with self.recorder.guard.catch("writing a span's event"):
            span, name_of_span = self._place()
            self.recorder.put_event(span, name_of_span, name, attributes, time)

    def _place(self) -> tuple[Span | None, str]:
        """Return the span whose id an event of this one has, and the name of this one."""
        raise NotImplementedError


class FoldedSpan(_Recorded):
    """A span whose time is added to the step record; as cheap as it can be made.

    Nothing that `__enter__` and `__exit__` do on every step can fail, so they need no guard. What they do
    to the meter is what `LedgerMeter.enter` and `leave` do, without the calls.
    """

    __slots__ = (
        *("recorder", "attributes", "began", "below", "closed", "duration"),
        *("error", "outer", "step", "thread", "times"),
    )

    id: str | None = None
    parent_id: str | None = None

    def __init__(self, recorder: _Recorder, times: SpanTimes, attributes: dict[str, Any]) -> None:
        self.recorder = recorder
        self.times = times
        self.attributes = attributes
        """What is known of it; written where it is kept by itself."""
        self.error: BaseException | str | None = None
        self.duration: float | None = None
        self.closed = True
        """Also before it begins: what is not open cannot be stopped."""

    def __enter__(self) -> FoldedSpan:
        recorder = self.recorder
        self.closed = False
        self.step = recorder.gate.last_step
        # What `current.get()` does, without the call.
        self.outer = _OPEN_SPANS.get().get(recorder.current)
        self.thread = thread = get_ident()
        now = self.began = recorder.monotonic()
        if self.times.bucket is not None:
            meter = recorder.meter
            if thread == meter.owner:
                top = self.below = meter.top
                since = meter.since
                meter.since = now
                if top is not None:
                    top.times.bucket[0] += now - since
                meter.top = self
            else:
                with recorder.guard.catch("beginning a span"):
                    recorder.enter_from_elsewhere(self, now)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        recorder, times = self.recorder, self.times
        if self.closed:
            with recorder.guard.catch("ending a span"):
                recorder.say_stopped_twice(times.name)
            return
        now = recorder.monotonic()
        duration = self.duration = now - self.began
        self.closed = True
        meter = recorder.meter
        if meter.top is self:
            since = meter.since
            meter.since = now
            times.bucket[0] += now - since  # type: ignore[index]
            below = self.below
            if below is not None and below.closed:
                with recorder.guard.catch("ending a span"):
                    below = meter.first_open(below)
            meter.top = below
        if self.thread == meter.owner:
            times.seconds += duration
            times.count += 1
        else:
            times.others.append(duration)
        recorder.closed.append(self)
        if error is not None or self.error is not None:
            with recorder.guard.catch("ending a span"):
                if error is not None:
                    meter.unwind(self, now)
                recorder.keep_failed(self, error if error is not None else self.error)
        if self.attributes:
            # It may be remembered for a while, and a batch be among them.
            self.attributes = {}

    def stop(self, stop_time: float | None = None, error: BaseException | str | None = None) -> None:
        """End it, now or at a wall time."""
        if error is not None:
            self.error = error
        if stop_time is not None and not self.closed:
            with self.recorder.guard.catch("ending a span"):
                self.recorder.end_folded_at(self, stop_time)
        else:
            self.__exit__(None, None, None)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.times.name

    @property
    def start(self) -> float | None:
        """Seconds since the epoch; None before it begins."""
        return self.began + self.recorder.walls.ahead if self._has_begun else None

    @property
    def _has_begun(self) -> bool:
        return not self.closed or self.duration is not None

    def fail(self, error: BaseException | str) -> None:
        """Say what went wrong in it; it is then kept by itself."""
        self.error = error

    def _place(self) -> tuple[Span | None, str]:
        return (self.outer if self._has_begun else self.recorder.innermost()), self.name


class Span(_Recorded):
    """A span with an id, a parent and a record of its own. Ends when its block does, or when it is stopped."""

    # Defaults of the class, so that making one costs four assignments.
    id: str = ""
    outer: Span | None = None
    """What was open here when it began, and is again what is open when it ends; its parent unless another was given."""
    parent_id: str | None = None
    start: float | None = None
    """Seconds since the epoch; None before it begins."""
    began = 0.0
    duration: float | None = None
    """Seconds; None while it is open."""
    error: BaseException | str | None = None
    closed = False
    is_beginning_written = False
    """Whether its beginning was written."""
    is_unfinished = False
    """Whether the run ended before it did."""
    kept: str | None = None
    """Why a span that is usually only added up was written by itself."""
    stopped_at: float | None = None
    below: Any = None
    step = -1
    thread = 0

    def __init__(self, recorder: _Recorder, name: str, times: SpanTimes, attributes: dict[str, Any]) -> None:
        self.recorder = recorder
        self.name = name
        self.times = times
        self.attributes = attributes

    def __enter__(self) -> Span:
        with self.recorder.guard.catch("beginning a span"):
            self.recorder.begin(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self.recorder.guard.catch("ending a span"):
            if error is not None:
                if not isinstance(error, NO_FAILURES):
                    self.error = error
                self.recorder.unwind(self)
            self.recorder.end(self)

    def stop(self, stop_time: float | None = None, error: BaseException | str | None = None) -> None:
        """End it, now or at a wall time."""
        if error is not None:
            self.error = error
        with self.recorder.guard.catch("ending a span"):
            if stop_time is not None:
                self.stopped_at = self.recorder.as_time(stop_time)
            self.recorder.end(self)

    def fail(self, error: BaseException | str) -> None:
        """Say what went wrong in it, without ending it."""
        self.error = error

    def _place(self) -> tuple[Span | None, str]:
        return self, self.name


AnySpan = Span | FoldedSpan | NoSpan


def step_of(span: FoldedSpan) -> int:
    """Return the step of a short span: one of `OF_A_STEP` begins before its step is logged."""
    return span.step + (span.name in OF_A_STEP)
