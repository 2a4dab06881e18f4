"""Seconds and energy by ledger entry, of one session or of a whole run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.timing.kept_steps import lost_after
from toolkit.telemetry.timing.names import (
    ENTRIES,
    IN_OTHER,
    IN_STARTUP,
    IN_TRAINING,
    REWORK,
    STALLED,
    UNACCOUNTED,
)
from toolkit.telemetry.timing.power import JOULES_PER_KWH
from toolkit.telemetry.timing.record_fields import LONGEST_S
from toolkit.telemetry.timing.segments import EARLY, OTHER, REST, SLOT_OF, UNSEEN, WORK, Segment, Sums
from toolkit.telemetry.timing.segments import STALLED as STALLED_SLOT
from toolkit.telemetry.timing.session_time import SessionTime

_ENTRY_OF_SLOT: Final = {
    **{slot: entry for entry, slot in SLOT_OF.items()},
    EARLY: IN_STARTUP,
    STALLED_SLOT: STALLED,
    UNSEEN: UNACCOUNTED,
}


class Totals:
    """Seconds, energy and seconds with known power, by entry; the seconds add up to `wall_s`."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.perf_tag: str | None = None
        self.wall_s = 0.0
        self.began: float | None = None
        """Wall times of its beginning and end; None if no record has them."""
        self.ended: float | None = None
        self.clock_went_further_s = 0.0
        self.seconds = dict.fromkeys(ENTRIES, 0.0)
        self.joules = dict.fromkeys(ENTRIES, 0.0)
        self.known = dict.fromkeys(ENTRIES, 0.0)
        self.inferred: set[str] = set()
        """Entries with seconds that were not timed."""

    @property
    def known_s(self) -> float:
        """Seconds for which power is known."""
        return sum(self.known.values())

    def goodput(self) -> float | None:
        """Return the share of the wall time that was training and was kept; None if no time has passed."""
        return self.seconds[IN_TRAINING] / self.wall_s if self.wall_s > 0.0 else None

    def kwh(self) -> float | None:
        """Return the energy as far as power is known; None if it never was."""
        return sum(self.joules.values()) / JOULES_PER_KWH if self.known_s > 0.0 else None

    def kwh_of(self, entry: str) -> float | None:
        """Return the energy of one entry; None if power is unknown for all of its seconds."""
        if self.known[entry] > 0.0:
            return self.joules[entry] / JOULES_PER_KWH
        return 0.0 if self.known_s > 0.0 and not self.seconds[entry] else None

    def add(self, entry: str, sums: Sums, slot: int) -> None:
        """Add the part of `sums` in `slot` to `entry`."""
        self.seconds[entry] += sums.seconds[slot]
        self.joules[entry] += sums.joules[slot]
        self.known[entry] += sums.known_s[slot]


def sum_of(sessions: Iterable[Totals]) -> Totals:
    """Return the totals of a run, summed over its sessions."""
    total = Totals()
    for totals in sessions:
        total.wall_s += totals.wall_s
        for entry in ENTRIES:
            total.seconds[entry] += totals.seconds[entry]
            total.joules[entry] += totals.joules[entry]
            total.known[entry] += totals.known[entry]
        total.inferred |= totals.inferred
    return total


def session_totals(
    time: SessionTime, kept_step: float, entry: Session | None, end: float | None, *, is_alive: bool
) -> Totals:
    """Return the totals of one session, whose work was kept up to `kept_step`.

    `entry` is the session's entry in the manifest; `end` is the wall time of its end if no record has it.
    """
    totals = Totals(time.number)
    # The manifest's tag is the newest: earlier versions wrote late tags only there.
    totals.perf_tag = (entry.perf_tag if entry is not None else None) or time.perf_tag
    totals.clock_went_further_s = time.clock_went_further_s
    if time.origin is None and entry is not None:
        # No record yet: only the start is known.
        time = SessionTime(time.number)
        time.origin = time.last_time = entry.started
    end_s = time.last_at
    if time.ended_s is not None:
        end_s = time.ended_s
    elif end is not None and time.last_time is not None:
        end_s += min(max(0.0, end - time.last_time), LONGEST_S)
    totals.wall_s = end_s + time.lead_s
    if time.origin is not None and time.last_time is not None:
        totals.began = time.origin - time.lead_s
        totals.ended = time.last_time + (end_s - time.last_at)

    tail = time.tail(end_s, is_alive=is_alive)
    sums = time.sums(tail)
    rest_entry = UNACCOUNTED if time.times_training else IN_TRAINING
    if sums.seconds[REST] + sums.seconds[OTHER] > 0.0 and not time.times_training:
        totals.inferred.add(IN_TRAINING)
    if time.first_steps_s > 0.0:
        totals.inferred.add(IN_STARTUP)
    lost = _lost(time, tail, kept_step)
    for slot in (*WORK, REST):
        totals.add(REWORK, lost, slot)
        _subtract(sums, lost, slot)
    for slot, name in _ENTRY_OF_SLOT.items():
        totals.add(name, sums, slot)
    totals.add(rest_entry, sums, REST)
    totals.add(IN_OTHER if time.times_training else IN_TRAINING, sums, OTHER)
    _make_exact(totals)
    return totals


def _lost(time: SessionTime, tail: list[Segment], kept_step: float) -> Sums:
    if time.begins_at is None or kept_step == math.inf:
        return Sums()
    slots = WORK if time.times_training else (*WORK, REST)
    segments = chain(reversed(tail), reversed(time.timeline.settled))
    return lost_after(segments, kept_step, begins_at=time.begins_at, slots=slots)


def _subtract(sums: Sums, lost: Sums, slot: int) -> None:
    sums.seconds[slot] = max(0.0, sums.seconds[slot] - lost.seconds[slot])
    sums.joules[slot] = max(0.0, sums.joules[slot] - lost.joules[slot])
    sums.known_s[slot] = max(0.0, sums.known_s[slot] - lost.known_s[slot])


def _make_exact(totals: Totals) -> None:
    """Make the entries add up to the wall time exactly: a million additions leave a rounding error."""
    largest = max(ENTRIES, key=lambda entry: totals.seconds[entry])
    totals.seconds[largest] += totals.wall_s - sum(totals.seconds.values())


def between(sessions: Sequence[Totals]) -> float:
    """Return the seconds between the first and the last session in which no session was running."""
    total = 0.0
    last: float | None = None
    for totals in sessions:
        if totals.began is None or totals.ended is None:
            continue
        if last is not None:
            total += max(0.0, totals.began - last)
        last = totals.ended if last is None else max(last, totals.ended)
    return total
