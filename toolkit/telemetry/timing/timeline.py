"""The sequence of segments of one session: fits recorded seconds in, finds stalls, merges neighbours."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Final

from toolkit.telemetry.runfolder.status import STALL_S, STALL_TIMES
from toolkit.telemetry.timing.segments import (
    CHECKPOINT,
    EARLY,
    REST,
    SLOTS,
    Segment,
    Sums,
    cut_off,
    merged,
    move_to_stalled,
    waiting_seconds,
)

_PACES: Final = 301
"""Intervals that define the usual pace."""
_MOST_SEGMENTS: Final = 10_000
_MOST_CARRIED_S: Final = 60.0
"""Seconds beyond a segment that are carried into the next one; more than that is invalid."""


class Timeline:
    """Segments up to the last step record, which are settled, and later ones, which may still become a stall.

    `paces` are the seconds per step of earlier sessions.
    """

    def __init__(self, paces: Iterable[float] = ()) -> None:
        self.segments: list[Segment] = []
        self.paces: deque[float] = deque(paces, _PACES)
        """Seconds per step of the last intervals."""
        self.odd = 0
        """How often more seconds were recorded than had passed."""
        self._own_paces = 0
        self._interval_steps = 1
        """Steps from one step record to the next, lately."""
        self._has_stepped = False
        self._gap = 0
        """Index of the first segment after the last step record."""
        self._unrecorded = 0
        """Index of the first segment after the last record with seconds."""
        self._guessed = [0.0] * SLOTS
        self._carried = [0.0] * SLOTS
        self._has_carried = False
        self._settled: Sums | None = None

    @property
    def settled(self) -> list[Segment]:
        """The segments up to the last step record."""
        return self.segments[: self._gap]

    @property
    def unsettled(self) -> list[Segment]:
        """The segments after it."""
        return self.segments[self._gap :]

    def usual_pace(self) -> float | None:
        """Return the usual seconds per step of this session, or of earlier ones; None if unknown."""
        paces = list(self.paces)[-self._own_paces :] if self._own_paces else self.paces
        return statistics.median(paces) if paces else None

    def sums(self, tail: Sequence[Segment]) -> Sums:
        """Return all seconds by slot, with `tail` instead of the unsettled segments."""
        if self._settled is None:
            self._settled = Sums()
            self._settled.add(self.settled)
        sums = deepcopy(self._settled)
        sums.add(tail)
        for slot, seconds in enumerate(self._carried):
            sums.move(REST, slot, seconds)
        return sums

    # ------------------------------------------------------------ recorded and guessed

    def guess(self, spans: Sequence[float], length: float) -> list[float]:
        """Return the seconds of a segment without recorded seconds: those in spans."""
        seconds = at_most(spans, length)
        self._guessed = [a + b for a, b in zip(self._guessed, seconds, strict=True)]
        return seconds

    def fit(self, recorded: list[float], length: float, spans: Sequence[float]) -> list[float]:
        """Return the part of the recorded seconds that lies in a segment of `length`.

        Seconds recorded late, because a checkpoint or a record without any came in between, go to the segments before.
        Seconds recorded early, because a record was completed after its own time, are carried into the next segment.
        """
        if self._unrecorded < len(self.segments):
            recorded = [max(0.0, a - b) for a, b in zip(recorded, self._guessed, strict=True)]
            self._guessed = [0.0] * SLOTS
            late = self._late(recorded, length, spans)
            recorded = [a - b for a, b in zip(recorded, late, strict=True)]
            recorded = [a + b for a, b in zip(recorded, self._spread_back(late), strict=True)]
        if self._has_carried:
            recorded = [a + b for a, b in zip(recorded, self._carried, strict=True)]
            self._carried = [0.0] * SLOTS
            self._has_carried = False
        total = sum(recorded)
        if total <= length:
            if spans[CHECKPOINT] and not recorded[CHECKPOINT]:
                # A checkpoint with its own seconds that was not timed by a span.
                recorded[CHECKPOINT] = min(spans[CHECKPOINT], length - total)
            return recorded
        here = length / total
        self._carry([seconds * (1.0 - here) for seconds in recorded])
        return [seconds * here for seconds in recorded]

    def _late(self, recorded: Sequence[float], length: float, spans: Sequence[float]) -> list[float]:
        """Return the recorded seconds for which a segment of `length` has no room; those in its spans have room."""
        loose = [max(0.0, seconds - placed) for seconds, placed in zip(recorded, spans, strict=True)]
        loose_s = sum(loose)
        over_s = min(loose_s, max(0.0, sum(recorded) - length))
        return [seconds * (over_s / loose_s) if loose_s else 0.0 for seconds in loose]

    def take_back_for_checkpoint(self, seconds: float) -> None:
        """Count `seconds` before now as a checkpoint if records came while it was saved and none of them said so."""
        if seconds > 0.0 and not any(segment.seconds[CHECKPOINT] for segment in self.unsettled):
            _move_rest(self.unsettled, seconds, CHECKPOINT)

    def take_back(self, seconds: float, slot: int) -> None:
        """Count up to `seconds` before the open segment that are in no entry as `slot`: records came during it."""
        if seconds > 0.0:
            open_from = len(self.segments) - len(cut_off(self.segments))
            _move_rest(self.segments[self._gap : open_from], seconds, slot)

    def _spread_back(self, over: list[float]) -> list[float]:
        """Put seconds into the segments after the last record with seconds; return those that do not fit."""
        before = self.segments[self._unrecorded :]
        # What passed before training began is startup, unless there is no other room.
        for soft in (REST, EARLY):
            room, over_s = sum(segment.seconds[soft] for segment in before), sum(over)
            moved = min(room, over_s)
            if moved <= 0.0:
                continue
            for segment in before:
                part = segment.seconds[soft] * (moved / room)
                segment.seconds[soft] -= part
                for slot, seconds in enumerate(over):
                    segment.seconds[slot] += part * (seconds / over_s)
            over = [seconds * (1.0 - moved / over_s) for seconds in over]
            self._settled = None
        return over

    def _carry(self, over: list[float]) -> None:
        over_s = sum(over)
        if over_s > _MOST_CARRIED_S:
            self.odd += 1
            over = [seconds * (_MOST_CARRIED_S / over_s) for seconds in over]
        self._carried = over
        self._has_carried = True

    # ------------------------------------------------------------ growing

    def add(self, segment: Segment, *, is_recorded: bool) -> None:
        """Append a segment."""
        if self._continues_last(segment, is_recorded=is_recorded):
            self.segments[-1].absorb(segment)
        else:
            self.segments.append(segment)
        if is_recorded:
            self._unrecorded = len(self.segments)

    def add_lead(self, seconds: float) -> None:
        """Make the first segment start earlier."""
        self.segments[0].seconds[EARLY] += seconds
        self._settled = None

    def settle(self, steps: int | None) -> None:
        """Settle everything up to a step record that came `steps` after the one before; None for the first."""
        if steps is not None:
            interval = self.unsettled
            waited = waiting_seconds(interval)
            if steps > 0:
                self._interval_steps = steps
            if waited > STALL_S:
                self.look_for_stall(interval)
            if steps > 0:
                # A step that is logged twice says nothing about how long a step takes.
                self.paces.append(waited / steps)
                self._own_paces += 1
        self._has_stepped = True
        self._gap = len(self.segments)
        self._settled = None
        if self._gap > _MOST_SEGMENTS:
            self._merge(_MOST_SEGMENTS * 3 // 4)

    def end(self) -> None:
        """Settle everything: no more records come."""
        self.look_for_stall(self.unsettled)
        self._gap = len(self.segments)
        self._settled = None

    def look_for_stall(self, interval: Sequence[Segment]) -> None:
        """Move seconds that are far too long for the steps of `interval` to stalled."""
        waited = waiting_seconds(interval)
        if waited <= STALL_S or not self.paces or not self._has_stepped:
            return
        usual = statistics.median(self.paces) * self._interval_steps
        if waited > STALL_TIMES * usual:
            move_to_stalled(interval, usual)

    def shrink(self, most: int) -> None:
        """Merge down to about `most` segments, after another session has started."""
        while self._gap > most:
            self._merge(most)

    def _continues_last(self, segment: Segment, *, is_recorded: bool) -> bool:
        """Whether `segment` lies in the same interval at the same step as the last one, so the two can be merged."""
        count = len(self.segments)
        if count <= self._gap or segment.first_step != segment.last_step:
            return False
        last = self.segments[-1]
        return (
            last.first_step == segment.last_step
            and (segment.saves or not last.saves)
            and (is_recorded or self._unrecorded < count)
        )

    def _merge(self, target: int) -> None:
        done = merged(self.settled, target)
        gone = self._gap - len(done)
        self.segments[: self._gap] = done
        self._gap -= gone
        self._unrecorded = max(0, self._unrecorded - gone)


def at_most(seconds: Sequence[float], length: float) -> list[float]:
    """Return `seconds`, scaled down in proportion if their sum is more than `length`."""
    total = sum(seconds)
    return list(seconds) if total <= length else [part * (length / total) for part in seconds]


def _move_rest(segments: Sequence[Segment], seconds: float, slot: int) -> None:
    """Count up to `seconds` that are in no entry as `slot`, the last ones first."""
    for segment in reversed(segments):
        if seconds <= 0.0:
            return
        part = min(seconds, segment.seconds[REST])
        segment.seconds[REST] -= part
        segment.seconds[slot] += part
        seconds -= part
