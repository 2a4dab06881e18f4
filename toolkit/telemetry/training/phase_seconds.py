"""Seconds of forward, backward and data loading in the training loop, excluding evaluations inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from toolkit.timing.names import BACKWARD, DATA_LOADING, FORWARD

_WATCHED: Final = (FORWARD, BACKWARD, DATA_LOADING)

ReadSpanTotals = Callable[[str], tuple[int, float]]
"""The number of spans of a name so far, and their total seconds."""


class PhaseSeconds:
    """Reads totals that spans keep anyway, so an iteration costs nothing here. Starts outside of training."""

    def __init__(self, totals: ReadSpanTotals) -> None:
        self._totals = totals
        self._elsewhere = dict.fromkeys(_WATCHED, 0.0)
        """Seconds that do not belong to training."""
        self._left_at: dict[str, float] | None = dict.fromkeys(_WATCHED, 0.0)
        self._outside = 1
        """The nesting depth of what is not training; 0 while training."""
        self._at_last_window = dict.fromkeys(_WATCHED, 0.0)

    def leave_training(self) -> None:
        """Stop counting: from here on, forward belongs to an evaluation or to sampling."""
        if self._outside == 0:
            self._left_at = self._read()
        self._outside += 1

    def return_to_training(self) -> None:
        """Resume counting."""
        if self._outside == 0:
            return
        self._outside -= 1
        if self._outside == 0 and self._left_at is not None:
            for name, seconds in self._read().items():
                self._elsewhere[name] += seconds - self._left_at[name]
            self._left_at = None

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each timed phase in training so far."""
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
