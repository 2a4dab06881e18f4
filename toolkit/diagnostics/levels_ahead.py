"""The level and the noise of the loss before each record of a batch, all at once with numpy where it is loaded."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress, count
from typing import Any, Final

from toolkit.diagnostics import thresholds as at
from toolkit.diagnostics.metric_aliases import LOSS
from toolkit.diagnostics.robust import CHANGE_TO_SIGMA, Window, sliding_medians
from toolkit.diagnostics.step_batch import StepBatch

ALLOWED: Final = at.ALLOWANCE * CHANGE_TO_SIGMA
"""How many of the usual changes a loss may be above its level before that counts."""
_NO_CHANGE: Final = math.log1p(at.NO_CHANGE)


class LevelsAhead:
    """What is usual before each record of the rest of a batch, if all of them come into the windows."""

    def __init__(
        self,
        batch: StepBatch,
        first: int,
        end: int,
        rows: int,
        longer: Window,
        changes: Window,
        recent: Sequence[float],
        allowed: float,
    ) -> None:
        self._batch = batch
        self.first = first
        """The place of the first record, with which the lists begin; `rows` came before it."""
        self._end = end
        self._rows = rows
        self.ys = ys = list(map(math.log, batch.columns[LOSS][first:end]))
        self._longer = [*longer.newest, *ys]
        # Loaded with the columns of a long history; the logger, which has none, never loads it.
        numpy: Any = sys.modules["numpy"]
        y = numpy.array(ys)
        all_longer, all_recent = (numpy.concatenate((each, y)) for each in (longer.newest, recent))
        apart = abs(y - all_recent[at.SHORT_WINDOW - 1 : -1])
        all_changes = numpy.concatenate((changes.newest, apart[rows & 1 :: 2]))
        levels, noises = (
            sliding_medians(values, at.LEVEL_WINDOW) for values in (all_longer[:-1], all_changes)
        )
        above = y - numpy.minimum(levels, sliding_medians(all_recent[:-1], at.SHORT_WINDOW))
        alloweds = ALLOWED * noises
        # Up to the next change that comes into its window.
        alloweds[0] = allowed
        is_high = above > alloweds.repeat(2)[1 - (rows & 1) :][: len(ys)]
        self._changes: list[float] = all_changes.tolist()
        self.levels, self._noises = levels.tolist(), noises.tolist()
        self.above = above.tolist()
        self.high = (is_high.nonzero()[0] + first).tolist()
        """The places of losses that are further above their level than is allowed."""
        self._no_change = ((apart <= _NO_CHANGE).nonzero()[0] + first).tolist()

    def holds(self, batch: StepBatch, start: int, rows: int, longer: Window, changes: Window) -> bool:
        """Return whether all records since then have come into the windows."""
        return (
            batch is self._batch
            and start < self._end
            and [*longer.newest] == self.longer_at(rows)
            and [*changes.newest] == self.changes_at(rows)
        )

    def longer_at(self, rows: int) -> list[float]:
        """Return the longer window when there have been so many records."""
        return self._longer[rows - self._rows :][: at.LEVEL_WINDOW]

    def changes_at(self, rows: int) -> list[float]:
        """Return the window of changes when there have been so many records."""
        return self._changes[(rows + 1) // 2 - (self._rows + 1) // 2 :][: at.LEVEL_WINDOW]

    def noise(self, place: int) -> float:
        """Return the middle one of the changes before a record."""
        rows = self._rows + place - self.first
        noise: float = self._noises[(rows + 1) // 2 - (self._rows + 1) // 2]
        return noise

    def next_without_change(self, start: int) -> int:
        """Return the next place whose loss is that before it, or the end."""
        number = bisect_left(self._no_change, start)
        return self._no_change[number] if number < len(self._no_change) else self._end


def next_low(batch: StepBatch, start: int, bottom: float) -> int:
    """Return the next place whose loss is at the bottom of the axis."""
    if batch.range_of(LOSS)[0] > bottom:
        return len(batch)
    is_low = (loss <= bottom for loss in batch.columns[LOSS][start:])
    return next(compress(count(start), is_low), len(batch))
