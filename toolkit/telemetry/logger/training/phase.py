"""One phase of a job as a `with` block or a decorator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from toolkit.telemetry.core.decorators import wrap_calls
from toolkit.telemetry.logger.spans.span import AnySpan

_F = TypeVar("_F", bound=Callable[..., Any])


class Phase(ABC):
    """Begins and ends with its block, whatever happens inside, and yields its span. It also decorates functions."""

    __slots__ = ()

    @abstractmethod
    def __enter__(self) -> AnySpan: ...

    @abstractmethod
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...

    @abstractmethod
    def again(self) -> Phase:
        """Return a new phase of the same kind, not yet begun."""

    def __call__(self, function: _F) -> _F:
        """Return `function` with such a phase around each call; coroutines and generators are supported."""
        return wrap_calls(function, self.again)


class FunctionPhase(Phase):
    """A phase whose beginning and end are functions."""

    __slots__ = ("_begin", "_end", "_span")

    def __init__(
        self, begin: Callable[[], AnySpan], end: Callable[[AnySpan, BaseException | None], None]
    ) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> AnySpan:
        span = self._span = self._begin()
        return span

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(self._span, error)

    def again(self) -> FunctionPhase:
        """Return a new phase of the same kind, not yet begun."""
        return FunctionPhase(self._begin, self._end)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseKind:
    """What all phases of one name share; each is a span, and may be counted too."""

    name: str
    make: Callable[..., AnySpan]
    """Returns a span with the given name, not yet begun."""
    fail: Callable[[AnySpan, BaseException], None]
    """Called with an exception raised inside the phase, before it ends."""
    count: Callable[[AnySpan], None] | None = None
    """Called after a phase that ended without an exception."""


class SpanPhase(Phase):
    """A phase that is a span. There are several in each iteration, so it does as little as possible."""

    __slots__ = ("_attributes", "_kind", "_span")

    def __init__(self, kind: PhaseKind, attributes: dict[str, Any]) -> None:
        self._kind = kind
        self._attributes = attributes

    def __enter__(self) -> AnySpan:
        kind = self._kind
        span = self._span = kind.make(kind.name, **self._attributes)
        span.__enter__()
        return span

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        span = self._span
        if error is not None:
            self._kind.fail(span, error)
            span.__exit__(kind, error, trace)
            return
        span.__exit__(None, None, None)
        count = self._kind.count
        if count is not None:
            count(span)

    def again(self) -> SpanPhase:
        """Return a new phase of the same kind, not yet begun."""
        return SpanPhase(self._kind, dict(self._attributes))
