"""The short part of a batch that goes on: the wait for it, its forward pass, and so on to the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.telemetry.spans.span import NO_SPAN, AnySpan


def _make_no_span(_: str) -> AnySpan:
    return NO_SPAN


class BatchPart:
    """Of these parts one is open at a time, so that the beginning of one is the end of the one before.

    There are six hooks in each batch, between which a training leaves none of this in the processor's caches: what they
    cost is how much code they go through. So these are plain spans, and not the vocabulary's parts.
    """

    __slots__ = ("_make", "_name", "_span")

    def __init__(self, make: Callable[[str], AnySpan] = _make_no_span) -> None:
        self._make = make
        self._name = ""
        self._span: AnySpan | None = None

    def begin(self, name: str) -> None:
        """End what is open, and begin the part of this name."""
        span = self._span
        if span is not None:
            self._span = None
            span.__exit__(None, None, None)
        span = self._make(name)
        span.__enter__()
        self._name, self._span = name, span

    def end(self, name: str | None = None, error: BaseException | None = None) -> None:
        """End what is open, or only a part of this name, because it is over or `error` went through it."""
        span = self._span
        if span is None or (name is not None and name != self._name):
            return
        self._span = None
        span.__exit__(None if error is None else type(error), error, None)
