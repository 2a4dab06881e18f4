"""What a forecast is made from and what it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Values over rising steps: finite ones only, sessions already joined."""

    steps: Floats
    values: Floats


@dataclass(frozen=True)
class Plan:
    """What is known of the rest of a run."""

    last_step: int | None
    lr: Curve | None = None
    """Learning rates recorded so far."""
    planned_lr: Curve | None = None
    """The rest of the schedule, if it is known."""


@dataclass(frozen=True)
class Forecast:
    """Where a metric will be at the planned end, with the interval that holds it in 9 of 10 runs."""

    metric: str
    at_step: float
    low: float
    middle: float
    high: float
    from_step: float
    records: int
    band: tuple[Floats, Floats, Floats, Floats]
    """Steps, low, middle, high from the last record to the end; at most 60 points."""
    basis: str
    """One sentence: what the forecast uses."""
    levels: Floats
    """The chances for which `quantiles` gives the final value."""
    quantiles: Floats

    def chance_below(self, value: float) -> float:
        """Return how likely the final value is below `value`."""
        points = self.quantiles
        if points[0] <= value <= points[-1]:
            return float(np.interp(value, points, self.levels))
        # Outside the known quantiles the chance falls by half with each further quarter of the interval.
        scale = max(0.25 * float(points[-1] - points[0]), 1e-300)
        if value < points[0]:
            return float(self.levels[0] * 0.5 ** ((points[0] - value) / scale))
        return float(1.0 - (1.0 - self.levels[-1]) * 0.5 ** ((value - points[-1]) / scale))


@dataclass(frozen=True)
class Fitted:
    """The constants of a forecast: rows are for the shares of the planned steps in `done`."""

    done: tuple[float, ...]
    places: tuple[tuple[float, ...], ...]
    """Weights of `Signs.places` in the middle."""
    difficulty: tuple[float, ...]
    """Weights of `Signs.difficulty` in the logarithm of the usual miss."""
    hardest: float
    """A forecast whose usual miss is larger, in ranges so far, is not given."""
    levels: tuple[float, ...]
    known: tuple[tuple[float, ...], ...]
    """Misses, final value minus middle, in usual misses, where the rest of the schedule is known.

    First the shortest interval that holds 9 of 10, then the quantiles at `levels`.
    """
    unknown: tuple[tuple[float, ...], ...]
    """The same where it is not known."""
    held_out: float
    """How many times larger the misses of a validation loss are: it may rise while the training loss falls."""


@dataclass(frozen=True)
class NoForecast:
    """Why there is no forecast."""

    why: str
    """One sentence."""
