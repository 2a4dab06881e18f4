"""A context manager and decorator that records exceptions and lets them pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar

from toolkit.telemetry.core.decorators import wrap_calls
from toolkit.telemetry.core.guard import Guard

_F = TypeVar("_F", bound=Callable[..., Any])

_CAN_BE_SHORTENED: Final = sys.version_info >= (3, 11)
"""Before 3.11, changing the traceback of an exception in flight has no effect."""


class ErrorCapture:
    """Records each exception that leaves its block, or the function that it decorates, and never suppresses it.

    It has no state: it is thread-safe and reentrant.
    """

    __slots__ = ("_guard", "_record")

    def __init__(self, guard: Guard, record: Callable[[BaseException], object]) -> None:
        self._guard = guard
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
        inside = _Inside(self._guard, self._record)
        return self._guard.call("capturing errors", wrap_calls, function, lambda: inside) or function


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
