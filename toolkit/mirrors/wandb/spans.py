"""The numbers of a span or an event, under the names that W&B shows them by."""

from __future__ import annotations

from toolkit.mirrors.shared.span_attributes import plain_attributes
from toolkit.mirrors.shared.span_filter import SpanFilter
from toolkit.runfolder.records import SPAN, SPAN_EVENT, Record


def numbers_of(record: Record, span_filter: SpanFilter) -> dict[str, float]:
    """Return how long a span took, or the numbers that an event tells; other records have none.

    W&B draws numbers over steps: it has no place for a tree, nor for what is text.
    """
    event = record.get("event")
    name = record.get("name")
    if event == SPAN and isinstance(name, str) and span_filter.takes(name):
        duration = record.get("duration")
        if isinstance(duration, int | float):
            return {f"span/{name}/duration_s": float(duration)}
    if event == SPAN_EVENT and isinstance(name, str) and span_filter.takes(str(record.get("span", ""))):
        return {
            f"event/{name}/{attribute}": float(value)
            for attribute, value in plain_attributes(record.get("attributes")).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    return {}
