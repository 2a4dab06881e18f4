"""A context manager and decorator that records exceptions and lets them pass."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from toolkit.telemetry.core.decorators import decorated_inside

_F = TypeVar("_F", bound=Callable[..., Any])

_CAN_BE_SHORTENED: Final = sys.version_info >= (3, 11)
"""Before 3.11, changing the traceback of an exception in flight has no effect."""


class ErrorCapture:
    """Records each exception that leaves its block, or the function that it decorates, and never suppresses it.

    It has no state: it is thread-safe and reentrant.
    """

    __slots__ = ("_record",)

    def __init__(self, record: Callable[[BaseException], object]) -> None:
        self._record = record

    def __enter__(self) -> ErrorCapture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self._record(error)
        except (RecursionError, MemoryError):
            # No room left to record it. The script's exception matters more.
            pass

    def __call__(self, function: _F) -> _F:
        """Return `function` with such a block around each call, also if it is a coroutine or a generator."""
        within = decorated_inside(function, self)
        if within is not None:
            return within  # type: ignore[no-any-return]
        inside = _Inside(self._record)
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            def begin(*args: Any, **kwargs: Any) -> Any:
                return _CapturedIteration(function(*args, **kwargs), inside)

            return begin  # type: ignore[return-value]

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_later(*args: Any, **kwargs: Any) -> Any:
                with inside:
                    return await function(*args, **kwargs)

            return call_later  # type: ignore[return-value]

        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def iterate(*args: Any, **kwargs: Any) -> Any:
                with inside:
                    return (yield from function(*args, **kwargs))

            return iterate  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with inside:
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


class _Inside(ErrorCapture):
    """The block inside a decorated function: its own frame is removed from the traceback."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if _CAN_BE_SHORTENED and error is not None and trace is not None and trace.tb_next is not None:
            # Python then prints the traceback as it would be without the decorator.
            BaseException.with_traceback(error, trace.tb_next)


class _CapturedIteration(AsyncGenerator[Any, Any]):
    """An asynchronous generator whose exceptions are recorded; `asend` and `athrow` are passed on."""

    def __init__(self, iteration: AsyncGenerator[Any, Any], inside: _Inside) -> None:
        self._iteration = iteration
        self._inside = inside

    async def __anext__(self) -> Any:
        with self._inside:
            return await self._iteration.__anext__()

    async def asend(self, value: Any) -> Any:
        with self._inside:
            return await self._iteration.asend(value)

    async def athrow(self, *given: Any) -> Any:
        with self._inside:
            return await self._iteration.athrow(*given)

    async def aclose(self) -> None:
        with self._inside:
            await self._iteration.aclose()
