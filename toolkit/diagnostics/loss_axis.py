"""The axis on which losses are compared: logarithmic while the loss is positive."""

from __future__ import annotations

import math

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.robust import Window

_FIRST_LOSSES = 3


class LossAxis:
    """A logarithmic axis while losses are positive; linear from the first that is not."""

    __slots__ = ("_first", "_gaps", "_spread", "bottom", "has_changed", "is_plain")

    def __init__(self) -> None:
        self.is_plain = False
        """Whether it is linear, so that ratios are meaningless."""
        self._first: list[float] = []
        self.bottom = 0.0
        """Losses below it are equal; 0 while it is not known, and on a linear axis."""
        self._spread = Window(at.LEVEL_WINDOW)
        self._gaps: dict[float, float] = {}
        self.has_changed = False
        """Whether the last loss switched to the linear axis."""

    def place(self, loss: float) -> float:
        """Return the position of the finite `loss`."""
        if loss > self.bottom > 0.0:
            return math.log(loss)
        return self._place_with_care(loss)

    def value(self, y: float) -> float:
        """Return the loss at position `y`."""
        return y if self.is_plain else math.exp(min(y, 700.0))

    def gap(self, level: float, share: float) -> float:
        """Return the distance that a rise by `share` of its value makes at `level`."""
        if not self.is_plain:
            gap = self._gaps.get(share)
            if gap is None:
                gap = self._gaps[share] = math.log1p(share)
            return gap
        # A loss that changes its sign has no ratios: use its spread.
        return share * max(abs(level), 3.0 * self._spread.sigma)

    def floor(self, level: float) -> float:
        """Return the smallest noise to assume: logs are rounded, and a loss that repeats itself is not exact."""
        return max(self.gap(level, at.LEAST_NOISE), 1e-12)

    def _place_with_care(self, loss: float) -> float:
        self.has_changed = False
        if self.is_plain:
            self._spread.push(loss)
            return loss
        if loss < 0.0 or (loss == 0.0 and not self.bottom):
            self.is_plain = self.has_changed = True
            # `place` uses its shortcut only for losses above the bottom, and now there is no bottom.
            self.bottom = 0.0
            self._spread.push(loss)
            return loss
        if not self.bottom:
            self._first.append(loss)
            if len(self._first) == _FIRST_LOSSES:
                self.bottom = at.NOTHING_LEFT * sorted(self._first)[1]
        return math.log(max(loss, self.bottom, 1e-300))
