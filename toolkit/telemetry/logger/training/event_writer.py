"""Writes events and errors of a job's spans, and checks whole-number arguments."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from toolkit.telemetry.core.checks import whole_number
from toolkit.telemetry.logger.errors.failure import describe_failure
from toolkit.telemetry.logger.spans.span import NO_FAILURES, AnySpan
from toolkit.telemetry.logger.training.attributes import ERROR, Attributes, known
from toolkit.telemetry.logger.training.job_log import JobLog

_RECORDED: Final = "_telemetry_has_recorded"
_MAX_OF_A_TYPE: Final = 200
"""Exceptions of one type that are recorded with their traceback: a loop may catch one in every step."""


class EventWriter:
    """Writes the events of one job through one logger."""

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self._guard = log.guard
        self._counts: dict[str, int] = {}

    def write(
        self, span: AnySpan | None, name: str, attributes: Attributes, time: float | None = None
    ) -> None:
        """Write an event of `span`, or of the run if `span` is None."""
        if span is not None:
            span.event_with(name, attributes, time)
        else:
            self._log.event_outside_spans(name, attributes, time)

    def end(self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None) -> None:
        """End a span, and record the exception that was raised inside it."""
        if error is not None:
            self.write_error(span, error)
        span.stop(stop_time, error)

    def write_error(self, span: AnySpan | None, error: BaseException) -> None:
        """Record an exception once, as outer phases see it too; interrupts and `StopIteration` are not errors."""
        if not isinstance(error, Exception) or isinstance(error, NO_FAILURES) or not self._log.is_live:
            return
        with self._guard.catch("recording an error"):
            if hasattr(error, _RECORDED):
                return
            # The mark is on the exception itself: a reference kept here would keep all its frames alive, and an id
            # may be reused. An exception that takes no attributes is recorded by each phase.
            with suppress(AttributeError, TypeError):
                setattr(error, _RECORDED, True)
            kind = type(error).__name__
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if self._counts[kind] > _MAX_OF_A_TYPE:
                return
            described = describe_failure(error)
            attributes = known(
                error_message=described["message"],
                exception_type=described["type"],
                exception_message=described["message"],
                exception_traceback="\n".join(described["stack"]),
            )
            self.write(span, ERROR, attributes)

    def fail_current(self, error: BaseException) -> None:
        """Record an exception on the span that is open here, or on the run."""
        span = self._log.current_span()
        self.write_error(span, error)
        if span is not None:
            span.fail(error)

    def whole_or_none(self, name: str, value: Any) -> int | None:
        """Return an argument as a whole number ≥ 0; None if it was not given or is invalid."""
        if value is None:
            return None
        number = whole_number(value)
        if number is None or number < 0:
            self._guard.report_misuse(f"{name} must be a whole number ≥ 0, got a {type(value).__name__}")
            return None
        return number
