"""Reads numbers from untrusted records: a valid number, or None."""

from __future__ import annotations

from typing import Any, Final

from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.untrusted import is_number, whole_in

LONGEST_S: Final = 3.2e9
"""A century: no run is longer."""


def seconds_in(record: Record, name: str) -> float | None:
    """Return the duration in field `name`; None if it is missing or invalid."""
    value = record.get(name)
    # NaN fails the comparison. Booleans are integers in Python, but not durations.
    if is_number(value) and 0 <= value <= LONGEST_S:
        return float(value)
    return None


def time_in(record: Record, name: str) -> float | None:
    """Return the wall time in field `name`, in seconds since 1970; None if it is missing or invalid."""
    value = record.get(name)
    if is_number(value) and 0 < value <= 4 * LONGEST_S:
        return float(value)
    return None


def step_in(record: Record, name: str = "global_step") -> int | None:
    """Return the integer in field `name`, or None."""
    return whole(record.get(name))


def whole(value: Any) -> int | None:
    """Return `value` if it is an integer in the valid range, else None."""
    return whole_in(int(value) if type(value) is float and value.is_integer() else value)
