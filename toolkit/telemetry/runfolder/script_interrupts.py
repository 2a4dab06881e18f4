"""Distinguishes an exception raised by the script's signal handler from a failure of telemetry.

Python runs a signal handler in the middle of whatever the main thread is doing, which may be a call of this package.
What the handler raises there (such as the `TimeoutError` of a time limit) must reach the script.
"""

from __future__ import annotations

import inspect
import itertools
import os
import signal
import threading

# The public function converts each result to an enum member, which takes 10 µs.
from _signal import getsignal  # type: ignore[import-not-found]  # it has no types
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any, Final

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEEPEST: Final = 1_000
_LONGEST_CHAIN: Final = 20
_SIGNALS: Final = range(1, signal.NSIG)

# Read from BaseException: the exception's own class may override these attributes.
_own = vars(BaseException)
_trace_of: Callable[[BaseException], Any] = _own["__traceback__"].__get__
_cause_of: Callable[[BaseException], Any] = _own["__cause__"].__get__
_context_of: Callable[[BaseException], Any] = _own["__context__"].__get__


def interrupt_within(error: BaseException) -> BaseException | None:
    """Return the exception that a signal handler of the script raised, if it is `error` or caused it; else None.

    A handler's frame is recognised by its arguments (a signal number and the interrupted frame), or by its code if the
    handler is still registered. A handler that is not written in Python leaves no frame, and is not recognised.
    """
    if threading.get_ident() != threading.main_thread().ident:
        # Python runs signal handlers only on the main thread.
        return None
    try:
        return _find_interrupt(error)
    except (RecursionError, MemoryError):
        return None


def pass_on_interrupt(error: BaseException) -> None:
    """Reraise what a signal handler of the script raised; do nothing if `error` is a failure of telemetry."""
    interrupt = interrupt_within(error)
    if interrupt is not None:
        raise interrupt


def _find_interrupt(error: BaseException) -> BaseException | None:
    found: BaseException | None = error
    registered: set[int] | None = None
    for _ in range(_LONGEST_CHAIN):
        if found is None:
            return None
        trace = _trace_of(found)
        if found is not error and (trace is None or not _is_ours(trace.tb_frame)):
            # The script has caught it.
            return None
        frames = list(_frames(trace))
        if not all(map(_is_ours, frames)):
            if registered is None:
                registered = _codes_of_handlers()
            for frame in frames:
                if id(frame.f_code) in registered or _has_arguments_of_a_handler(frame):
                    # Our own handler calls the script's; a failure in our own is a failure of telemetry.
                    return None if _is_ours(frame) and _is_ours(frames[-1]) else found
        # Our code may have caught it and raised something else.
        cause = _cause_of(found)
        found = cause if cause is not None else _context_of(found)
    return None


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    for _ in range(_DEEPEST):
        if trace is None:
            return
        yield trace.tb_frame
        trace = trace.tb_next


def _has_arguments_of_a_handler(frame: FrameType) -> bool:
    code, interrupted = frame.f_code, frame.f_back
    has_more = bool(code.co_flags & inspect.CO_VARARGS)
    if interrupted is None or not (code.co_argcount > 1 or has_more):
        return False
    given = frame.f_locals
    names = code.co_varnames
    values: list[Any] = [given.get(name) for name in names[: code.co_argcount]]
    if has_more:
        more = given.get(names[code.co_argcount + code.co_kwonlyargcount])
        values += more if isinstance(more, tuple) else ()
    # By its type: asking the argument itself could run code of the script.
    return any(
        second is interrupted and issubclass(type(first), int) and int.__index__(first) in _SIGNALS
        for first, second in itertools.pairwise(values)
    )


def _codes_of_handlers() -> set[int]:
    """Return the ids of the code objects of the registered handlers."""
    handlers = [handler for handler in map(getsignal, _SIGNALS) if handler is not None]
    codes = (_code_of(handler) for handler in handlers if type(handler) is not int)
    return {id(code) for code in codes if code is not None}


def _code_of(handler: Any) -> CodeType | None:
    while type(handler) is partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    if type(handler) is not FunctionType:
        # Looked up without running code of the handler.
        called = (vars(kind).get("__call__") for kind in type(handler).__mro__)
        handler = next((found for found in called if found is not None), None)
    return handler.__code__ if type(handler) is FunctionType else None
