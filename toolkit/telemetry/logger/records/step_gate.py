"""Which steps get a record of their own, and what is kept of those that do not."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from typing import Any, Final

from toolkit.telemetry.logger.records.folded_metrics import FoldedMetrics

_FLOAT_MAX: Final = sys.float_info.max

NEVER: Final = 2**63
"""A step that no run reaches."""

JUMP_DEVIATIONS: Final = 8.0
"""A loss this many mean absolute deviations above its running mean is a jump. Of a normal distribution that is one
step in ten billion; flow-matching losses have longer tails and reach it once in some thousand steps."""

BLOCK: Final = 16
"""Losses are learnt from in blocks of this many: what is usual changes slowly, and a step has no time for it."""

_WEIGHT: Final = 0.4
"""Weight of the newest block in what counts as usual: about the last sixty losses do."""

MAX_FOLDED: Final = 256
"""Losses kept one by one; more of them are summed up."""


class StepGate:
    """Which steps are due, and what is known of the steps since the last step record.

    The public fields are what the caller's thread looks at on every step: for one that lies strictly between
    `last_step` and `due_at`, with a loss strictly between `low` and `high`, appending the loss to `losses` is all that
    has to be done.
    """

    __slots__ = (
        *("awaiting", "block", "due_at", "high", "last_step", "losses", "low", "metrics", "rows", "summed"),
        *("write_next", "_deviation", "_max", "_mean", "_min", "_sum"),
    )

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.metrics = FoldedMetrics()
        """What else was given with these steps."""
        self.rows = self.metrics.rows
        self.last_step: int = -NEVER
        self.due_at: int = -NEVER
        """The next step that gets a record; far in the past to have the next call looked at closely."""
        self.awaiting: list[int] | None = None
        """Has the last step, and gets the next one added when that is looked at closely."""
        self.write_next = False
        """Whether the next step gets a record, whatever the interval."""
        self.low = -_FLOAT_MAX
        self.high = _FLOAT_MAX
        self.summed = 0
        """How many folded losses are no longer in `losses`, but summed up."""
        self._sum = 0.0
        self._min = math.inf
        self._max = -math.inf
        self.block: list[float] = []
        """Losses that were not learnt from yet."""
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, loss: float) -> None:
        """Fold one ordinary loss of a step that gets no record."""
        self.losses.append(loss)
        if len(self.losses) >= MAX_FOLDED:
            self._compress(keep=1)

    @property
    def count(self) -> int:
        """Steps folded since the last record."""
        return self.summed + len(self.losses)

    @property
    def latest(self) -> float | None:
        """The newest folded loss."""
        return self.losses[-1] if self.losses else None

    def take(self, loss: float | None) -> dict[str, Any]:
        """Return the fields about the folded steps, if any, and forget them; `loss` is the recorded step's."""
        if loss is not None:
            self.learn(loss)
        if not self.losses and not self.summed:
            return {}
        self._compress()
        total, low, high, count = self._sum, self._min, self._max, self.summed
        if loss is not None:
            total, count = total + loss, count + 1
            if loss < low:
                low = loss
            if loss > high:
                high = loss
        fields = {
            "steps_folded": self.summed,
            "train_loss_mean": total / count,
            "train_loss_min": low,
            "train_loss_max": high,
        }
        self.summed, self._sum, self._min, self._max = 0, 0.0, math.inf, -math.inf
        return fields

    def learn(self, loss: float) -> None:
        """Count the loss of a recorded step among those that show what is usual."""
        self.block.append(loss)
        if len(self.block) >= BLOCK:
            self.update_jump_threshold()

    def _compress(self, keep: int = 0) -> None:
        # Another thread may append while this runs: only what was counted is taken away.
        taken = self.losses[: len(self.losses) - keep]
        del self.losses[: len(taken)]
        if not taken:
            return
        self.summed += len(taken)
        self._sum += sum(taken)
        self._min = min(self._min, min(taken))
        self._max = max(self._max, max(taken))
        self.block += taken[-4 * BLOCK :]
        if len(self.block) >= BLOCK:
            self.update_jump_threshold()

    def update_jump_threshold(self) -> None:
        """Update the loss above which a step is a jump."""
        block = sorted(self.block)
        self.block.clear()
        if block[-1] > self.high:
            # A jump must not teach that jumps are usual, so it counts as the largest ordinary loss.
            block = [min(loss, self.high) for loss in block]
        mean = sum(block) / len(block)
        # The losses above the mean deviate from it as much, all in all, as those below it.
        above = block[bisect_right(block, mean) :]
        deviation = 2.0 * (sum(above) - len(above) * mean) / len(block)
        if not math.isfinite(deviation):
            # Losses at the very end of what a number can be: nothing is unusual among them.
            return
        if self._mean is None:
            self._mean, self._deviation = mean, deviation
        else:
            # The loss also moves from block to block, which belongs to what is usual.
            deviation = max(deviation, abs(mean - self._mean))
            self._mean += _WEIGHT * (mean - self._mean)
            self._deviation += _WEIGHT * (deviation - self._deviation)
        # A loss that hardly moves at all would make every rounding error a jump.
        margin = max(JUMP_DEVIATIONS * self._deviation, 1e-3 * abs(self._mean), 1e-12)
        high = self._mean + margin
        self.high = high if math.isfinite(high) else _FLOAT_MAX
