"""Converts an exception to the fields of an error record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from toolkit.telemetry.core.formatting import both_ends
from toolkit.telemetry.core.guard import Guard, describe_error
from toolkit.telemetry.logger.errors.stack import (
    exception_stack,
    fingerprint,
    path_shower,
    walk_around,
    walk_trace,
)
from toolkit.telemetry.privacy.masking import Masker

STACK: Final = "_telemetry_stack"
"""Attribute of an exception that replaces a lost one: the stack of the lost one, as in a record."""
_LONGEST: Final = 500
"""Characters of a message in the record of a span."""
_LONGEST_IN_FULL: Final = 4_000
"""The same for an error record: the message of a worker process contains its whole traceback."""
_LONGEST_READ: Final = 10_000_000
"""Characters of a message that are read."""
_LONGEST_OF_OTHERS: Final = 1_000
_LINES_OF_OTHERS: Final = 12
"""Limits for each cause and each exception of a group: the error itself is more important."""
_MAX_NOTES: Final = 10
_MAX_CHAIN: Final = 5
_MAX_IN_GROUP: Final = 10
_DEEPEST_GROUP: Final = 3

# Read from BaseException: the exception's own class may override these attributes.
_own = vars(BaseException)
_trace_of: Callable[[BaseException], Any] = _own["__traceback__"].__get__
_cause_of: Callable[[BaseException], Any] = _own["__cause__"].__get__
_context_of: Callable[[BaseException], Any] = _own["__context__"].__get__
_hides_context: Callable[[BaseException], Any] = _own["__suppress_context__"].__get__


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Return type, message and stack of `error` as text, without local values; keeps no reference to it."""
    masker = Masker()
    return {
        "type": type(error).__name__,
        "message": _message(error, masker, _LONGEST),
        "stack": masker.mask(exception_stack(walk_trace(_trace_of(error))).lines(path_shower())),
    }


def describe_in_full(error: BaseException, guard: Guard) -> dict[str, Any]:
    """Return all fields of `error`, including its causes and group; parts that cannot be read are omitted.

    Keeps no reference to it.
    """
    return _Description(guard).of(error)


def fingerprint_of(error: BaseException) -> str:
    """Return a fingerprint of type and location: equal if the same error occurs again."""
    return fingerprint(*_identity(error, _DEEPEST_GROUP))


class _Description:
    """Builds the fields of one exception."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._masker = Masker()
        self._shown = path_shower()

    def of(self, error: BaseException) -> dict[str, Any]:
        fields = self._one(error, is_main=True)
        # Each part by itself: an exception whose own code fails is still recorded.
        with self._guard.catch("reading the notes of an exception"):
            notes = vars(error).get("__notes__")
            if isinstance(notes, (list, tuple)) and notes:
                fields["notes"] = [self._text(str(note)) for note in notes[:_MAX_NOTES]]
        with self._guard.catch("reading what caused an exception"):
            chain = [self._one(cause, link=link) for cause, link in _chain(error)]
            if chain:
                fields["caused_by"] = chain
        return fields

    def _one(
        self, error: BaseException, *, link: str | None = None, depth: int = 0, is_main: bool = False
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": "exception"}
        with self._guard.catch("reading an exception"):
            fields["type"] = str(type(error).__name__)
            fields["module"] = str(type(error).__module__)
        fields["message"] = _message(error, self._masker, _LONGEST_IN_FULL if is_main else _LONGEST_OF_OTHERS)
        if link is not None:
            fields["link"] = link
        with self._guard.catch("reading a traceback"):
            trace = _trace_of(error)
            stack = exception_stack([*(walk_around(trace) if is_main else ()), *walk_trace(trace)])
            lines = vars(error).get(STACK) or self._masker.mask(stack.lines(self._shown))
            fields["stack"] = lines if is_main else lines[-_LINES_OF_OTHERS:]
        with self._guard.catch("reading a group of exceptions"):
            within = _within(error)
            if within and depth < _DEEPEST_GROUP:
                fields["group"] = [self._one(each, depth=depth + 1) for each in within[:_MAX_IN_GROUP]]
            if len(within) > _MAX_IN_GROUP or (within and depth >= _DEEPEST_GROUP):
                fields["in_group"] = len(within)
        return fields

    def _text(self, text: str) -> str:
        return _cut(text, self._masker, _LONGEST)


def _message(error: BaseException, masker: Masker, longest: int) -> str:
    return _cut(describe_error(error, _LONGEST_READ), masker, longest)


def _cut(text: str, masker: Masker, longest: int) -> str:
    """Return the beginning and the end of a text, with its secrets masked."""
    # Truncated before and after: masking has bounded input, and no secret is separated from its name.
    return both_ends(str(masker.mask(both_ends(text, 4 * longest))), longest)


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield the causes and contexts of an exception, nearest first."""
    seen = {id(error)}
    for _ in range(_MAX_CHAIN):
        cause = _cause_of(error)
        link = "cause"
        if cause is None and not _hides_context(error):
            cause, link = _context_of(error), "context"
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause, link
        error = cause


def _within(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group, also of a backport for Python before 3.11."""
    if not any(kind.__name__ == "BaseExceptionGroup" for kind in type(error).__mro__):
        return ()
    within = getattr(error, "exceptions", ())
    return tuple(each for each in within if isinstance(each, BaseException))


def _identity(error: BaseException, depth: int) -> Iterator[str]:
    kind = type(error)
    yield f"{kind.__module__}.{kind.__qualname__}"
    yield exception_stack(walk_trace(_trace_of(error))).positions()
    if depth:
        for each in _within(error)[:_MAX_IN_GROUP]:
            yield from _identity(each, depth - 1)
