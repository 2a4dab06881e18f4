"""Writes what there is to say of a job's spans: events, errors, and arguments that make no sense."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from toolkit.core.checks import whole_number
from toolkit.telemetry.errors.failure import describe_failure
from toolkit.telemetry.spans.span import NO_FAILURES, AnySpan
from toolkit.telemetry.training.attributes import ERROR, Attributes, ErrorAttributes
from toolkit.telemetry.training.job_log import JobLog

_TOLD: Final = "_telemetry_has_told"
_TOLD_OF_A_TYPE: Final = 200
"""Exceptions of one type that are told of with their traceback: a loop may catch one in every step."""


class EventWriter:
    """Tells of one job, through one logger."""

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self._guard = log.guard
        self._told: dict[str, int] = {}

    def tell(
        self, span: AnySpan | None, name: str, attributes: Attributes, time: float | None = None
    ) -> None:
        """Write an event of `span`, or of the run where there is none."""
        if span is not None:
            span.event_with(name, attributes.known(), time)
        else:
            self._log.event_outside_spans(name, attributes.known(), time)

    def end(self, span: AnySpan, error: BaseException | None = None, stop_time: float | None = None) -> None:
        """End a span, and tell of the exception that went through it."""
        if error is not None:
            self.tell_of_error(span, error)
        span.stop(stop_time, error)

    def tell_of_error(self, span: AnySpan | None, error: BaseException) -> None:
        """Tell of an exception, once: the parts further out see the same one.

        An interruption is no error, and the end of an iterator is none.
        """
        if not isinstance(error, Exception) or isinstance(error, NO_FAILURES) or not self._log.is_live:
            return
        with self._guard.catch("telling of an error"):
            if hasattr(error, _TOLD):
                return
            # On the exception itself: to remember it here would keep every frame it went through alive, and another
            # one may have its address later. One that takes no attributes is told of by each part.
            with suppress(AttributeError, TypeError):
                setattr(error, _TOLD, True)
            kind = type(error).__name__
            self._told[kind] = self._told.get(kind, 0) + 1
            if self._told[kind] > _TOLD_OF_A_TYPE:
                return
            described = describe_failure(error)
            told = ErrorAttributes(
                error_message=described["message"],
                exception_type=described["type"],
                exception_message=described["message"],
                exception_traceback="\n".join(described["stack"]),
            )
            self.tell(span, ERROR, told)

    def fail_current(self, error: BaseException) -> None:
        """Tell of an exception on the span that is open here, or on the run."""
        span = self._log.current_span()
        self.tell_of_error(span, error)
        if span is not None:
            span.fail(error)

    def whole_or_none(self, name: str, value: Any) -> int | None:
        """Return an argument as a whole number from 0 on; None where it was not given, or is none."""
        if value is None:
            return None
        number = whole_number(value)
        if number is None or number < 0:
            self._guard.report_misuse(
                f"a {type(value).__name__} was given as {name} that is no whole number from 0 on"
            )
            return None
        return number
