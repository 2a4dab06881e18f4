"""One part of a job as a `with` block or a decorator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from toolkit.telemetry.spans.span import AnySpan, timed_function

_F = TypeVar("_F", bound=Callable[..., Any])


class Part(ABC):
    """Begins with its block and ends with it, whatever happens there; gives its span. Decorates functions, too."""

    __slots__ = ()

    @abstractmethod
    def __enter__(self) -> AnySpan: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def again(self) -> Part:
        """Return another one of its kind, which has not begun."""

    def __call__(self, function: _F) -> _F:
        """Return `function` with such a part around each of its calls, whether it is awaited, iterated or neither."""
        return timed_function(function, self.again)


class Block(Part):
    """A part whose beginning and end are functions."""

    __slots__ = ("_begin", "_end", "_span")

    def __init__(
        self, begin: Callable[[], AnySpan], end: Callable[[AnySpan, BaseException | None], None]
    ) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> AnySpan:
        span = self._span = self._begin()
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._span, error)

    def again(self) -> Block:
        """Return another one of its kind, which has not begun."""
        return Block(self._begin, self._end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Parts of one name that are a span and no more, or are counted as well."""

    name: str
    make: Callable[..., AnySpan]
    """Returns a span of a name, which has not begun."""
    fail: Callable[[AnySpan, BaseException], None]
    """Called with an exception that goes through one, before it ends."""
    count: Callable[[AnySpan], None] | None = None
    """Called after one has ended well."""


class SpanBlock(Part):
    """A part of a kind. There are several in each iteration, so that little is done here."""

    __slots__ = ("_attributes", "_kind", "_span")

    def __init__(self, kind: Kind, attributes: dict[str, Any]) -> None:
        self._kind = kind
        self._attributes = attributes

    def __enter__(self) -> AnySpan:
        kind = self._kind
        span = self._span = kind.make(kind.name, **self._attributes)
        span.__enter__()
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        span = self._span
        if error is not None:
            self._kind.fail(span, error)
            span.__exit__(kind, error, trace)
            return
        span.__exit__(None, None, None)
        count = self._kind.count
        if count is not None:
            count(span)

    def again(self) -> SpanBlock:
        """Return another one of its kind, which has not begun."""
        return SpanBlock(self._kind, dict(self._attributes))
