"""Seconds of forward, backward and data loading inside the training loop, without those of an evaluation in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolkit.timing.names import BACKWARD, DATA_LOADING, FORWARD

_WATCHED: Final = (FORWARD, BACKWARD, DATA_LOADING)

SpanTotals = Callable[[str], tuple[int, float]]
"""How many spans of a name there were so far, and their seconds."""


class Phases:
    """Reads the sums that spans leave anyway, so that an iteration costs nothing here. Begins outside of training."""

    def __init__(self, totals: SpanTotals) -> None:
        self._totals = totals
        self._elsewhere = dict.fromkeys(_WATCHED, 0.0)
        """Seconds that were not training's."""
        self._left_at: dict[str, float] | None = dict.fromkeys(_WATCHED, 0.0)
        self._outside = 1
        """How many things are open, one in the other, that are not training; training goes on where it is 0."""
        self._at_last_window = dict.fromkeys(_WATCHED, 0.0)

    def leave_training(self) -> None:
        """Count nothing from here on: forward is now an evaluation's, or a sample's."""
        if self._outside == 0:
            self._left_at = self._read()
        self._outside += 1

    def return_to_training(self) -> None:
        """Count again."""
        if self._outside == 0:
            return
        self._outside -= 1
        if self._outside == 0 and self._left_at is not None:
            for name, seconds in self._read().items():
                self._elsewhere[name] += seconds - self._left_at[name]
            self._left_at = None

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase in training so far; of a phase that nobody times there is nothing."""
        found = self._left_at or self._read()
        training = {name: found[name] - self._elsewhere[name] for name in _WATCHED}
        return {name: seconds for name, seconds in training.items() if seconds > 0.0}

    def end_window(self, seconds: dict[str, float]) -> dict[str, float]:
        """Return how much of `seconds` is new since the last call."""
        fresh = {name: total - self._at_last_window[name] for name, total in seconds.items()}
        self._at_last_window.update(seconds)
        return fresh

    def _read(self) -> dict[str, float]:
        return {name: self._totals(name)[1] for name in _WATCHED}
