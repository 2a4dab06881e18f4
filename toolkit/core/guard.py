"""The one place where telemetry swallows its own failures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from toolkit.core.script_interrupts import interrupt_behind, pass_on_interrupt

_log = logging.getLogger("toolkit.telemetry")

_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")


_MAX_KINDS = 500
_OTHER_KINDS = "failures of other kinds"


class MisuseError(ValueError):
    """A call that makes no sense, such as ending what never began. Raised with `strict: true` only."""


class HasGuard(Protocol):
    """An object whose calls are guarded."""

    guard: Guard
    is_live: bool


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
        self.strict = False
        """Whether misuse raises: for tests."""
        self._reporting = threading.local()

    @property
    def total(self) -> int:
        """How many failures were caught so far."""
        return sum(self.counts.values())

    def catch(self, doing: str) -> _Catch:
        """Return a context manager that catches and counts any `Exception` raised while `doing` this."""
        return _Catch(self, doing)

    def catch_except(self, passing: type[Exception], doing: str) -> _Catch:
        """Return the same as `catch`, but let exceptions of the type `passing` through to the caller."""
        return _CatchExcept(self, doing, passing)

    def call(self, doing: str, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T | None:
        """Return what `function` returns, or None if it fails; cheaper than `catch`, for hooks in every step."""
        try:
            return function(*args, **kwargs)
        except MisuseError:
            raise
        except Exception as error:
            pass_on_interrupt(error)
            self.report(doing, error)
            return None

    def wrap(
        self, doing: str, function: Callable[[_A, _B, _C, _D], None]
    ) -> Callable[[_A, _B, _C, _D], None]:
        """Return `function`, of four arguments, guarded: cheaper than `catch` or `guarded`, for every step."""

        def call(a: _A, b: _B, c: _C, d: _D, /) -> None:
            try:
                function(a, b, c, d)
            except MisuseError:
                raise
            except Exception as error:
                pass_on_interrupt(error)
                self.report(doing, error)

        return call

    def report_misuse(self, sentence: str) -> None:
        """Report a call that makes no sense: logged once and counted, or raised as MisuseError if `strict`."""
        error = MisuseError(sentence)
        if self.strict:
            raise error
        self.report(sentence, error)

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
                    _log.warning(
                        "[telemetry] %s; training continues, and this is reported once",
                        _encodable(str(error)),
                    )
                else:
                    message = describe_error(error)
                    # The operating system's message (disk full, …) is enough; a bug needs its traceback, which
                    # repeats the message.
                    is_enough = isinstance(error, OSError) or message != _encodable(message)
                    _log.warning(
                        "[telemetry] %s failed (%s); training continues, further failures like it are only counted",
                        _encodable(doing),
                        _encodable(message),
                        exc_info=None if is_enough else error,
                    )
                if self.on_first is not None:
                    self.on_first(doing, error)
            finally:
                self._reporting.busy = False
        except Exception as failure:
            # A broken logging handler or `__str__` of the user must not reach the loop either.
            pass_on_interrupt(failure)
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
                return otherwise
            try:
                return method(self, *args, **kwargs)
            except MisuseError:
                raise
            except Exception as error:
                pass_on_interrupt(error)
                self.guard.report(method.__name__, error)
                return otherwise

        return call

    return decorate if method is None else decorate(method)


def describe_error(error: BaseException, longest: int = 500) -> str:
    """Return the type and message of `error`, truncated to `longest` characters; never fails."""
    try:
        text = str(error)
    except Exception as failure:
        pass_on_interrupt(failure)
        text = "its message could not be read"
    return f"{type(error).__name__}: {text[:longest]}" if text else type(error).__name__


class _Catch:
    """One guarded block; a class, because a generator-based one costs five times as much."""

    __slots__ = ("_doing", "_guard")

    def __init__(self, guard: Guard, doing: str) -> None:
        self._guard = guard
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None or not isinstance(error, Exception) or isinstance(error, MisuseError):
            return False
        interrupt = interrupt_behind(error)
        if interrupt is error:
            return False
        if interrupt is not None:
            raise interrupt
        self._guard.report(self._doing, error)
        return True


class _CatchExcept(_Catch):
    """A guarded block that lets one type of exception through."""

    __slots__ = ("_passing",)

    def __init__(self, guard: Guard, doing: str, passing: type[Exception]) -> None:
        super().__init__(guard, doing)
        self._passing = passing

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return not isinstance(error, self._passing) and super().__exit__(kind, error, trace)
