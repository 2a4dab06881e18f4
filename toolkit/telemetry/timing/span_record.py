"""Reads spans from their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from toolkit.telemetry.runfolder.records import SPAN, SPAN_START, Record
from toolkit.telemetry.runfolder.untrusted import finite_in, whole_in
from toolkit.telemetry.timing.names import HOST_CLOCK

_LATEST: Final = 4e9
"""Seconds since 1970, up to 2096; later times are invalid, and their nanoseconds would not fit 64 bits."""

_NOTHING: Final[Mapping[str, Any]] = {}


class Span(NamedTuple):
    """One span, as recorded."""

    id: str
    """Empty if the record has no valid one."""
    name: str
    start: float
    """Wall time, in seconds."""
    duration: float | None
    """Seconds; None if its end was not written."""
    parent_id: str | None = None
    clock: str = HOST_CLOCK
    session: int = 0
    rank: int = 0
    thread: str | None = None
    step: int | None = None
    attributes: Mapping[str, Any] = _NOTHING
    error: Mapping[str, Any] | None = None
    kept: str | None = None
    """Why a span that is normally only summed was kept: start, end, incident or asked."""
    unfinished: bool = False
    """The run ended while it was open, and the logger closed it."""


def read_span(record: Record) -> Span | None:
    """Return the span in a `span` or `span_start` record; None if it has no valid time."""
    event = record.get("event")
    if event not in (SPAN, SPAN_START):
        return None
    duration = None
    if event == SPAN:
        took = finite_in(record.get("duration"))
        # A clock that was set back makes a duration negative.
        duration = None if took is None else seconds_in(max(0.0, took))
        if duration is None:
            return None
    start = seconds_in(record.get("start", record.get("time")))
    if start is None:
        return None
    attributes, error = record.get("attributes"), record.get("error")
    return Span(
        id=_text(record.get("id")) or "",
        parent_id=_text(record.get("parent_id")),
        name=_text(record.get("name")) or "span",
        start=start,
        duration=duration,
        clock=_text(record.get("clock")) or HOST_CLOCK,
        session=whole_in(record.get("session")) or 0,
        rank=whole_in(record.get("rank")) or 0,
        thread=_text(record.get("thread")),
        step=whole_in(record.get("global_step")),
        attributes=attributes if type(attributes) is dict else _NOTHING,
        error=error if type(error) is dict and error else None,
        kept=_text(record.get("kept")),
        unfinished=record.get("unfinished") is True,
    )


def seconds_in(value: object) -> float | None:
    """Return `value` if it is a valid time or duration, else None."""
    # Nearly every time is a float; NaN and infinities fail the comparison.
    number = value if type(value) is float else finite_in(value)
    return number if number is not None and 0.0 <= number < _LATEST else None


def _text(value: object) -> str | None:
    return value if type(value) is str and value else None
