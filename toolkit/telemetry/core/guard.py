"""The one place where telemetry swallows its own failures, and where a line for the user is printed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

# The public function makes each result an enum member: 10 µs each, and what is called for those is code in Python.
from _signal import getsignal  # type: ignore[import-not-found]  # it has no types
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from traceback import walk_tb
from types import ModuleType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TextIO, TypeVar, overload

_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")


_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_traceback_of: Final = vars(BaseException)["__traceback__"].__get__
"""An exception's own class may hide that attribute."""
_MAX_KINDS = 500
_OTHER_KINDS = "failures of other kinds"


class MisuseError(ValueError):
    """A mistake of the caller's, such as ending what never began. With `strict: true` alone it reaches the caller."""


class LateError(Exception):
    """The run was closed during the call."""


class HasGuard(Protocol):
    """An object whose calls are guarded."""

    guard: Guard

    @property
    def is_live(self) -> bool:
        """Whether its calls have an effect."""


_S = TypeVar("_S", bound=HasGuard)


class Guard:
    """Catches and counts the failures of telemetry, and logs the first of each kind; training continues.

    An exception that a signal handler of the script raises in the middle of a call is the script's, and passes through.

    A kind is what was being done plus the exception's type. `on_first` is called for each new kind, so that the
    run folder records what went wrong; it must not raise, and is never called from within itself.
    """

    def __init__(self, on_first: Callable[[str, BaseException], None] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.on_first = on_first
        self.on_late_call: Callable[[str], None] = lambda _: None
        """Called with the name of a guarded method that is called while its object is not, or no longer, live."""
        self.strict = False
        """Whether misuse raises: for tests."""
        self.quiet = False
        """Whether nothing is printed but what goes wrong."""
        self._reporting = threading.local()

    @property
    def total(self) -> int:
        """How many failures were caught so far."""
        return sum(self.counts.values())

    def say(self, line: str, stream: TextIO | None = None) -> None:
        """Print a line for the user on standard error or on `stream`, which may be closed, full or a broken pipe."""
        if not self.quiet:
            with self.catch("printing a line"):
                print_line(f"{PREFIX} {line}", stream)

    def catch(self, doing: str) -> _Catch:
        """Return a context manager that catches and counts any `Exception` raised while `doing` this."""
        return _Catch(self, doing)

    def call(self, doing: str, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T | None:
        """Return what `function` returns, or None if it fails; cheaper than `catch`, for hooks in every step."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.take(doing, error)
            return None

    def take(self, doing: str, error: Exception) -> None:
        """Report what was caught while `doing` this.

        Raises:
            MisuseError: it is one, and `strict` is set.
            Exception: it is the script's own.
        """
        if isinstance(error, LateError):
            self.on_late_call(doing)
            return
        if isinstance(error, MisuseError):
            if self.strict:
                raise error
            doing = str(error)
        elif is_from_signal_handler(error):
            raise error
        self.report(doing, error)

    def report_misuse(self, sentence: str, kind: str = "") -> None:
        """Report a mistake of the caller's: logged once for each `kind`, counted and recorded.

        Without a kind each sentence is one.

        Raises:
            MisuseError: `strict` is set.
        """
        error = MisuseError(sentence)
        if self.strict:
            raise error
        self.report(kind or sentence, error)

    def report(self, doing: str, error: BaseException) -> None:
        """Count a failure; the first of its kind goes to the log with its traceback. Never raises."""
        try:
            kind = f"{doing}: {type(error).__name__}"
            if kind not in self.counts and len(self.counts) >= _MAX_KINDS:
                # A number in a span's name makes a kind of each.
                kind = _OTHER_KINDS
            self.counts[kind] = seen = self.counts.get(kind, 0) + 1
            if seen > 1 or getattr(self._reporting, "busy", False):
                return
            self._reporting.busy = True
            try:
                if isinstance(error, MisuseError):
                    warn("%s; training continues, and this is reported once", _encodable(str(error)))
                else:
                    message = describe_error(error)
                    # The message of the operating system (disk full, …) or of a missing package is enough; a bug
                    # needs its traceback, which repeats the message.
                    is_enough = isinstance(error, (OSError, ImportError)) or message != _encodable(message)
                    warn(
                        "%s failed (%s); training continues, further failures like it are only counted",
                        _encodable(doing),
                        _encodable(message),
                        error=None if is_enough else error,
                    )
                if self.on_first is not None:
                    self.on_first(doing, error)
            finally:
                self._reporting.busy = False
        except Exception as failure:
            # A broken logging handler or `__str__` of the user must not reach the loop either.
            if is_from_signal_handler(failure):
                raise
            self.counts["reporting a failure"] = self.counts.get("reporting a failure", 0) + 1


def _encodable(text: str) -> str:
    """Return `text` with lone surrogates escaped, which a log file in UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@overload
def guarded(method: Callable[Concatenate[_S, _P], _T], /) -> Callable[Concatenate[_S, _P], _T | None]: ...


@overload
def guarded(
    *, otherwise: _D
) -> Callable[[Callable[Concatenate[_S, _P], _T]], Callable[Concatenate[_S, _P], _T | _D]]: ...


def guarded(method: Any = None, /, *, otherwise: Any = None) -> Any:
    """Make a method catch and count its failures; if it fails or its object is not live, it returns `otherwise`.

    `KeyboardInterrupt`, `SystemExit` and what a signal handler of the script raises are the user's, and pass through.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: HasGuard, /, *args: Any, **kwargs: Any) -> Any:
            if not self.is_live:
                self.guard.on_late_call(method.__name__)
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                if type(error) is TypeError and error.__traceback__ and error.__traceback__.tb_next is None:
                    # The method was not entered: its arguments are wrong.
                    self.guard.report_misuse(f"{error}; the call is left out", method.__name__)
                else:
                    self.guard.take(method.__name__, error)
                return otherwise

        return call

    return decorate if method is None else decorate(method)


def guarded_step(method: Callable[[Any, _A, _B, _C, _D], None]) -> Callable[[Any, _A, _B, _C, _D], None]:
    """Guard a method of four arguments: cheaper than `guarded`, for every step. Its object has a `guard`."""

    @wraps(method)
    def call(self: Any, a: _A, b: _B, c: _C, d: _D, /) -> None:
        try:
            method(self, a, b, c, d)
        except Exception as error:
            self.guard.take("log_step", error)

    return call


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the script, registered now, raised `error`: the script's, not ours.

    Python runs a handler on the main thread, in the middle of whatever that is doing, such as one of our calls.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = [frame.f_code for frame, _ in walk_tb(_traceback_of(error))]
    others = {id(code) for code in codes if not code.co_filename.startswith(_PACKAGE)}
    return bool(others) and any(id(_code_of(getsignal(number))) in others for number in range(1, signal.NSIG))


def _code_of(handler: Any) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    # Of an object, the method that makes it callable.
    return getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


def describe_error(error: BaseException, longest: int = 500) -> str:
    """Return the type and message of `error`, truncated to `longest` characters; never fails."""
    try:
        text = str(error)
    except Exception:
        text = "its message could not be read"
    return f"{type(error).__name__}: {text[:longest]}" if text else type(error).__name__


class _Catch:
    """One guarded block; a class, because a generator-based one costs five times as much."""

    __slots__ = ("_doing", "_guard", "raised")

    def __init__(self, guard: Guard, doing: str) -> None:
        self._guard = guard
        self._doing = doing
        self.raised: BaseException | None = None

    def __enter__(self) -> _Catch:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.raised = error
        if error is None or not isinstance(error, Exception):
            return False
        if isinstance(error, MisuseError):
            if not self._guard.strict:
                self._guard.report(str(error), error)
            return not self._guard.strict
        if is_from_signal_handler(error):
            return False
        self._guard.report(self._doing, error)
        return True


PREFIX: Final = "[telemetry]"
_log = logging.getLogger("toolkit.telemetry")


def print_line(line: str, stream: TextIO | None = None) -> None:
    """Print `line` on standard error, or on `stream`. Raises OSError or ValueError if that is closed."""
    stream = stream or sys.stderr
    # Never imported here: a script that draws bars has it.
    std: ModuleType | None = sys.modules.get("tqdm.std")
    bars: Any = getattr(std, "tqdm", None)
    with bars.external_write_mode(file=stream) if getattr(bars, "_instances", None) else nullcontext():
        print(line, file=stream, flush=True)


def warn(text: str, *arguments: object, error: BaseException | None = None) -> None:
    """Log a warning, with the traceback of `error`; print it if the script has set up no logging."""
    trace = None if error is None else (type(error), error, error.__traceback__)
    if _log.hasHandlers() or logging.lastResort is None:
        _log.warning(f"{PREFIX} {text}", *arguments, exc_info=trace)
    elif _log.isEnabledFor(logging.WARNING):
        record = _log.makeRecord(
            _log.name, logging.WARNING, "", 0, f"{PREFIX} {text}", arguments, exc_info=trace
        )
        print_line(logging.Formatter().format(record))
