"""Reads numbers from untrusted records: a valid number, or None."""

from __future__ import annotations

from typing import Any, Final

from toolkit.runfolder.records import Record

_FARTHEST: Final = 2**53
"""Larger steps and sessions are invalid."""

LONGEST_S: Final = 3.2e9
"""A century: no run is longer."""


def seconds_in(record: Record, name: str) -> float | None:
    """Return the duration in field `name`; None if it is missing or invalid."""
    value = record.get(name)
    # NaN fails the comparison. Booleans are integers in Python, but not durations.
    if (type(value) is float or type(value) is int) and 0 <= value <= LONGEST_S:
        return float(value)
    return None


def moment_in(record: Record, name: str) -> float | None:
    """Return the wall time in field `name`, in seconds since 1970; None if it is missing or invalid."""
    value = record.get(name)
    if (type(value) is float or type(value) is int) and 0 < value <= 4 * LONGEST_S:
        return float(value)
    return None


def step_in(record: Record, name: str = "global_step") -> int | None:
    """Return the integer in field `name`, or None."""
    return whole(record.get(name))


def whole(value: Any) -> int | None:
    """Return `value` if it is an integer in the valid range, else None."""
    if type(value) is int and -_FARTHEST < value < _FARTHEST:
        return value
    if type(value) is float and -_FARTHEST < value < _FARTHEST and value.is_integer():
        return int(value)
    return None
