"""Which fields of a record are numbers of a curve: one rule for every reader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from toolkit.runfolder.codec import with_non_finite
from toolkit.runfolder.records import (
    ENVELOPE,
    EPOCH,
    EVAL,
    LOSS_JUMP,
    NAN_INF_DETECTED,
    STEP,
    SYSTEM,
    Record,
)

CARRIES_METRICS: Final = frozenset({STEP, SYSTEM, EVAL, EPOCH})
"""Records whose numbers are metrics; all others are events."""

NOT_METRICS: Final = frozenset({*ENVELOPE, "global_step", "epoch", NAN_INF_DETECTED, LOSS_JUMP})
"""Numbers of such records that are not metrics."""

EPOCH_PREFIX: Final = "epoch/"
"""In front of the name of an epoch record's metric: it is another curve than the one of the steps."""

MAX_METRICS: Final = 5_000
"""Further names are counted and left out: a log with a new name in every record would fill the memory."""

_LARGEST_SESSION = 2**31 - 1


class Position(NamedTuple):
    """Where a record is on the x axes; NaN where it does not say."""

    time: float
    elapsed: float
    step: float
    epoch: float
    session: int
    """0 where the record has none."""


def position_of(record: Record) -> Position:
    """Return where `record` is on the x axes, and its session."""
    record = with_non_finite(record)
    session = as_float(record.get("session"))
    return Position(
        as_float(record.get("time")),
        as_float(record.get("elapsed")),
        as_float(record.get("global_step")),
        as_float(record.get("epoch")),
        int(min(max(session, 0), _LARGEST_SESSION)) if math.isfinite(session) else 0,
    )


def metrics_of(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each metric in `record`, in the order of its fields, NaN and infinity restored.

    A boolean counts as 0 or 1, an integer beyond a double as NaN. A record that is an event has no metrics.
    """
    event = record.get("event")
    if not isinstance(event, str) or event not in CARRIES_METRICS:
        return
    prefix = EPOCH_PREFIX if event == EPOCH else ""
    for name, value in with_non_finite(record).items():
        if name in NOT_METRICS:
            continue
        if type(value) is float:
            yield prefix + name, value
        elif isinstance(value, (int, float)):
            yield prefix + name, as_float(value)


def metric_in(record: Record, name: str) -> float | None:
    """Return the value of the metric `name` if `metrics_of` yields it and it is finite, else None."""
    event = record.get("event")
    if event == EPOCH:
        if not name.startswith(EPOCH_PREFIX):
            return None
        name = name[len(EPOCH_PREFIX) :]
    elif not isinstance(event, str) or event not in CARRIES_METRICS:
        return None
    value = record.get(name)
    if not isinstance(value, (int, float)) or name in NOT_METRICS:
        return None
    number = as_float(value)
    return number if math.isfinite(number) else None


def as_float(value: object) -> float:
    """Return a number as a float, and NaN for anything else."""
    if type(value) is float:
        return value
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
