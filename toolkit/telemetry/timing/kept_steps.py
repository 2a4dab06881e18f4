"""Works out which steps of earlier sessions were kept, and which were lost and done again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from toolkit.telemetry.timing.segments import Segment, Sums
from toolkit.telemetry.timing.session_time import SessionTime


def kept_until(sessions: Sequence[SessionTime]) -> list[float]:
    """Return for each session the step up to which its work was kept; infinity if nothing was lost.

    The newest session resumed from a checkpoint of the latest earlier session that can have written it, that one from
    another, and so on back to the first. Work that is not on this path was lost.
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
            rank = _likely_source(sessions[earlier], step)
            if rank is not None and (best is None or rank > best):
                source, best = earlier, rank
        for passed in range(source + 1, number):
            kept[passed] = -math.inf
        if best is not None and best[0] > 0:
            kept[source] = step
        number = source
    return kept


def _likely_source(session: SessionTime, step: int) -> tuple[int, int] | None:
    """Return how likely a later session resumed from this one at `step`, as a sort key; None if impossible."""
    if session.begins_at is None or session.begins_at > step:
        return None
    last = session.begins_at if session.gets_to is None else session.gets_to
    if step in session.saved:
        return 2, 0
    # Not every step is logged: a session may have got further than its last record.
    return (1, 0) if last >= step else (0, last)


def lost_after(segments: Iterable[Segment], step: float, *, begins_at: int, slots: Sequence[int]) -> Sums:
    """Return what a session did in `slots` after `step`; its segments come last to first."""
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
