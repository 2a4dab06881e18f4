"""A block or a function whose exceptions are told of, and go on as they are."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Final, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

_CAN_BE_SHORTENED: Final = sys.version_info >= (3, 11)
"""Before, an exception that goes on takes the traceback along that it came with."""


class ErrorCapture:
    """Tells of each exception that leaves its block, or the function that it decorates. It swallows none.

    It holds no state: one may be entered by many threads, and again inside itself.
    """

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[BaseException], object]) -> None:
        self._tell = tell

    def __enter__(self) -> ErrorCapture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self._tell(error)
        except (RecursionError, MemoryError):
            # There is no room left to tell of it with. Theirs is the one that counts.
            pass

    def __call__(self, function: _F) -> _F:
        """Return `function` with such a block around each of its calls, whether it is awaited, iterated or neither."""
        if isinstance(function, (staticmethod, classmethod)):
            # It stands below this one: what is called is the function within.
            return type(function)(self(function.__func__))
        inside = _Inside(self._tell)
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
    """The block within a decorated function: the frame that it stands in is taken out of the traceback again."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if _CAN_BE_SHORTENED and error is not None and trace is not None and trace.tb_next is not None:
            # What is printed then is what would be printed without us.
            BaseException.with_traceback(error, trace.tb_next)


class _CapturedIteration(AsyncGenerator[Any, Any]):
    """An asynchronous generator that is told of; what is sent or thrown into it arrives there."""

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
