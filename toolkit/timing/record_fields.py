"""Numbers from records that anybody may have written: usable, or None."""

from __future__ import annotations

from typing import Any, Final

from toolkit.runfolder.records import Record

_FARTHEST: Final = 2**53
"""A step or session beyond it is none of anybody's."""

LONGEST_S: Final = 3.2e9
"""A century: no run has been going on for longer, and no clock of a record goes beyond it."""


def seconds_in(record: Record, name: str) -> float | None:
    """Return the length of time under `name`; None where there is none, or one that cannot be."""
    value = record.get(name)
    # A NaN is within no bounds. Booleans are integers to Python, and no time.
    if (type(value) is float or type(value) is int) and 0 <= value <= LONGEST_S:
        return float(value)
    return None


def moment_in(record: Record, name: str) -> float | None:
    """Return the wall time under `name`, in seconds since 1970; None where there is none that can be."""
    value = record.get(name)
    if (type(value) is float or type(value) is int) and 0 < value <= 4 * LONGEST_S:
        return float(value)
    return None


def step_in(record: Record, name: str = "global_step") -> int | None:
    """Return the whole number under `name`; None where there is none."""
    return whole(record.get(name))


def whole(value: Any) -> int | None:
    """Return `value` where it is a whole number that a run can reach, else None."""
    if type(value) is int and -_FARTHEST < value < _FARTHEST:
        return value
    if type(value) is float and -_FARTHEST < value < _FARTHEST and value.is_integer():
        return int(value)
    return None
