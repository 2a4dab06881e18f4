"""Metrics that a user pinned to a run's Overview, in their order; kept in the run's labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from toolkit.runfolder.labels import Labels

_KEY: Final = "pinned_metrics"
MAX_PINS: Final = 12


def pins_of(labels: Labels) -> tuple[str, ...]:
    """Return the pinned metrics, in order."""
    kept = labels.other.get(_KEY)
    return (
        tuple(dict.fromkeys(name for name in kept if isinstance(name, str)))[:MAX_PINS]
        if isinstance(kept, list)
        else ()
    )


def with_pins(labels: Labels, names: Sequence[str]) -> Labels:
    """Return `labels` with these metrics pinned."""
    other = {key: value for key, value in labels.other.items() if key != _KEY}
    if names:
        other[_KEY] = list(names)[:MAX_PINS]
    return replace(labels, other=other)
