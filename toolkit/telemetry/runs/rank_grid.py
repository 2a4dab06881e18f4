"""One metric of every rank over the steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank, and how slow it is."""

    rank: int
    typical: float
    """The median of its cells' means."""
    ratio: float | None
    """`typical` divided by the median of all ranks; None if that is not above zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """One metric of every rank over the steps, in cells of equal width: `rank_grid` of RunStore says which."""

    metric: str
    ranks: tuple[int, ...] = ()
    """The ranks that have logged the metric, ascending: the rows."""
    first_step: float = 0.0
    """Where the first cell begins: a multiple of `cell_steps`."""
    cell_steps: float = 1.0
    """How many steps wide a cell is: a power of two, at least 1."""
    mean: _Floats = field(default_factory=lambda: np.empty((0, 0)))
    """The mean of each cell, NaN where it has no value; equal up to the order in which the values are added."""
    high: _Floats = field(default_factory=lambda: np.empty((0, 0)))
    """The largest value of each cell, NaN where it has no value."""
    fraction_read: float = 1.0
    """How much of what the store has was read for this, from 0 to 1."""

    @property
    def empty(self) -> bool:
        """Whether no rank has logged the metric."""
        return not self.ranks

    def typical(self) -> _Floats:
        """Return, for each rank, the median of its cells' means: a pause in some of them does not count."""
        return np.nanmedian(self.mean, axis=1) if self.ranks else np.empty(0)

    def slowest(self, count: int = 5) -> tuple[SlowRank, ...]:
        """Return the ranks with the highest typical values, the highest first, and of equal ones the lower rank."""
        typical = self.typical()
        usual = float(np.median(typical)) if len(typical) else 0.0
        order = np.argsort(-typical, kind="stable")[:count].tolist()
        return tuple(
            SlowRank(
                rank=self.ranks[row],
                typical=float(typical[row]),
                ratio=float(typical[row]) / usual if usual > 0 else None,
            )
            for row in order
        )
