"""The calls of a logger around the parts of a training: spans, profiling, captured errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from toolkit.telemetry.core.decorators import wrap_calls
from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.logger.session.lifetime import LoggerLifetime
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan, FoldedSpan

if TYPE_CHECKING:
    from toolkit.telemetry.logger.errors.capture import ErrorCapture
    from toolkit.telemetry.logger.spans.profiling import Profiling

_F = TypeVar("_F", bound=Callable[..., Any])


class TimingCalls(LoggerLifetime):
    """Where the time goes, and where errors come from. None of these calls raises, or changes what is timed."""

    def span(self, name: str = "", /, **attributes: Any) -> AnySpan:
        """Return a span to put around a part of the work: `with log.span("encode", images=4):`.

        Short parts of every step (`data_loading`, `forward`, …) are added up on the step records; others get a record
        of their own, inside the span that is open around them. An exception is recorded on the span and raised.
        """
        # A name whose own code runs when it is looked up may fail: it is looked up within the guard.
        if type(name) is str:
            times = self._folding.get(name)
            if times is not None:
                return FoldedSpan(self._span_recorder, times, attributes)  # type: ignore[arg-type]
        span: AnySpan = NO_SPAN
        if self._span_recorder is not None:
            with self.guard.catch("making a span"):
                span = self._span_recorder.make(name, attributes)
        return span

    @guarded(otherwise=NO_SPAN)
    def device_span(self, name: str = "", /, **attributes: Any) -> AnySpan:
        """Return a span that is timed by the GPU's own clock as well, without waiting for it."""
        recorder = self._span_recorder
        return NO_SPAN if recorder is None else recorder.make_on_device(name, attributes)

    def timed(self, name: str | None = None, /, **attributes: Any) -> Callable[[_F], _F]:
        """Return a decorator that puts a span around each call of a function, one that is awaited too."""

        def decorate(function: _F) -> _F:
            timed = function
            with self.guard.catch("timing a function"):
                self._report_class("timed", function)
                inside = getattr(function, "__func__", None) or getattr(function, "fget", None) or function
                called = name or str(getattr(inside, "__qualname__", "call"))
                timed = wrap_calls(function, lambda: self.span(called, **attributes))
            return timed

        return decorate

    def _report_class(self, decorator: str, decorated: object) -> None:
        if isinstance(decorated, type):
            self.guard.report_misuse(
                f"{decorator} decorates functions, methods and properties; the class {decorated.__name__} is left "
                "as it is"
            )

    @overload
    def profile(
        self,
        name_: str | None = None,
        /,
        *,
        name: str | None = None,
        min_duration_ms: float | None = None,
        log_interval: int | None = None,
    ) -> Callable[[_F], _F]: ...

    @overload
    def profile(
        self,
        function: _F,
        /,
        *,
        name: str | None = None,
        min_duration_ms: float | None = None,
        log_interval: int | None = None,
    ) -> _F: ...

    def profile(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        min_duration_ms: float | None = None,
        log_interval: int | None = None,
    ) -> Any:
        """Time each call of a function as `profiling/<Class>.<function>`: `@log.profile` or `@log.profile(…)`.

        Calls shorter than `min_duration_ms` are not counted; of the others the first and each `log_interval`-th is
        logged. What is not given is as the options say.
        """
        if isinstance(function, str):
            function, name = None, function

        def decorate(called: _F) -> _F:
            profiled = called
            with self.guard.catch("profiling a function"):
                self._report_class("profile", called)
                profiling = self._profiles()
                if profiling is not None:
                    profiled = profiling.function(called, name, min_duration_ms, log_interval)
            return profiled

        return decorate if function is None else decorate(function)

    def profile_block(
        self, name: str = "", /, *, min_duration_ms: float | None = None, log_interval: int | None = None
    ) -> AbstractContextManager[object]:
        """Time a block as `profiling/<name>`: `with log.profile_block("forward_pass"):`."""
        known = self._profiled.get(name) if type(name) is str else None
        if known is not None:
            return known()
        return self._profile_block(name, min_duration_ms, log_interval)

    @guarded(otherwise=NO_SPAN)
    def _profile_block(
        self, name: str, min_duration_ms: float | None, log_interval: int | None
    ) -> AbstractContextManager[object]:
        if type(name) is str and not name:
            self.guard.report_misuse("profile_block was called without a name")
        profiling = self._profiles()
        return NO_SPAN if profiling is None else profiling.block(name, min_duration_ms, log_interval)

    def _profiles(self) -> Profiling | None:
        if self._profiling is None and self.is_live and self._run is not None:
            from toolkit.telemetry.logger.spans.profiling import Profiling

            recorder = self._run.spans
            self._profiling = Profiling(
                self._options.profiling_options,
                recorder.times,
                recorder.closed,
                recorder.monotonic,
                self.guard,
            )
            self._profiled = self._profiling.makers
        return self._profiling

    @guarded(otherwise=NO_SPAN)
    def start_span(
        self,
        name: str = "",
        /,
        *,
        attributes: Mapping[str, Any] | None = None,
        start_time: float | None = None,
        parent: AnySpan | str | None = None,
    ) -> AnySpan:
        """Begin a span that is stopped elsewhere: for callbacks, which cannot nest. It may begin in the past."""
        return self._live().spans.start(name, attributes, start_time, parent)

    @overload
    def capture_errors(self, /) -> ErrorCapture: ...

    @overload
    def capture_errors(self, function: _F, /) -> _F: ...

    def capture_errors(self, function: Any = None, /) -> Any:
        """Return a block, or a decorator, whose exceptions are recorded and raised as usual.

        `with log.capture_errors():`, `@log.capture_errors()` or `@log.capture_errors`, also of what is awaited or
        iterated. An exception that several of them see is one error.
        """
        from toolkit.telemetry.logger.errors.capture import ErrorCapture

        if self.is_live and self._run is not None:
            with self.guard.catch("listening to the output"):
                self._run.errors.listen()
        with self.guard.catch("capturing errors"):
            self._report_class("capture_errors", function)
        capture = ErrorCapture(self.guard, self._take_error)
        return capture if function is None else capture(function)

    @guarded
    def _take_error(self, error: BaseException) -> None:
        self._live().errors.recorder.take(error, caught_by="capture_errors")
