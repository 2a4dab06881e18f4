"""Which work of earlier sessions is part of what the run has now, and which was lost and done again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from toolkit.timing.segments import Segment, Sums


@dataclass(frozen=True, slots=True)
class Reach:
    """From where to where a session got."""

    begins_at: int | None
    """The step that it went on from; None where it did none."""
    gets_to: int | None
    saved: AbstractSet[int] = frozenset()
    """The steps it told of a checkpoint at."""

    def source_rank(self, step: int) -> tuple[int, int] | None:
        """Say how likely a later session that began at `step` went on from this one; None where it cannot have."""
        if self.begins_at is None or self.begins_at > step:
            return None
        last = self.begins_at if self.gets_to is None else self.gets_to
        if step in self.saved:
            return 2, 0
        # Records tell of every so manieth step: a session may have got further than the last of them says.
        return (1, 0) if last >= step else (0, last)


def kept_until(sessions: Sequence[Reach]) -> list[float]:
    """Return for each session the step up to which its work lives on; infinity where nothing of it was lost.

    The newest session went on from a checkpoint of an earlier one, the latest that can have left it, that one from
    another, and so back to the first. Whatever is not on this way was done in vain.
    """
    kept = [math.inf] * len(sessions)
    number = len(sessions) - 1
    while number >= 0 and sessions[number].begins_at is None:
        number -= 1
    while number > 0:
        step = sessions[number].begins_at
        assert step is not None
        source = -1
        best: tuple[int, int] | None = None
        for earlier in range(number - 1, -1, -1):
            rank = sessions[earlier].source_rank(step)
            if rank is not None and (best is None or rank > best):
                source, best = earlier, rank
        for passed in range(source + 1, number):
            kept[passed] = -math.inf
        if best is not None and best[0] > 0:
            kept[source] = step
        number = source
    return kept


def lost_behind(segments: Iterable[Segment], step: float, *, begins_at: int, slots: Sequence[int]) -> Sums:
    """Return what a session did in `slots` after it had passed `step`; its segments come last to first."""
    lost = Sums()
    for segment in segments:
        first = begins_at if segment.first_step is None else segment.first_step
        last = begins_at if segment.last_step is None else segment.last_step
        if segment.saves and last == step:
            break
        if first >= step and last >= step:
            lost.add_part(segment, slots, 1.0)
            continue
        if last > step:
            lost.add_part(segment, slots, (last - step) / (last - first))
        break
    return lost
