"""Number of steps done, given a step number: some loops count from 0."""

from __future__ import annotations

from typing import Final

from toolkit.runfolder.records import START, STEP, Record

FIRST_STEP: Final = "first_step"
"""Field of a start record, and of a manifest's summary: the number of the run's first step, where it is known."""


def shows_count_from_zero(record: Record) -> bool:
    """Return whether a record shows that its run counts from 0: a loop that counts from 1 never logs a step 0."""
    event = record.get("event")
    return (event == STEP and _is_zero(record.get("global_step"))) or (
        event == START and _is_zero(record.get(FIRST_STEP))
    )


def steps_done(step: int, *, from_zero: bool) -> int:
    """Return how many steps are done when `step` is."""
    return step + 1 if from_zero else step


def _is_zero(value: object) -> bool:
    return type(value) is int and value == 0
