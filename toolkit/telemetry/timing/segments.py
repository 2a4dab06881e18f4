"""Segments of a session between two records, and what their seconds were spent on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolkit.telemetry.timing.names import ENTRIES, LEDGER_PREFIX

# Slots: what a second can be while records are still coming in. The first seven come from records; the others are
# assigned at the end, because only then it is known whether the session times its training at all.
RECORDED: Final = ENTRIES[:7]
TRAINING, DATA_WAIT, VALIDATION, CHECKPOINT, SAMPLING, STARTUP, CONTROL = range(7)
STALLED: Final = 7
REST: Final = 8
"""In no span with an entry, after training began."""
EARLY: Final = 9
"""In no span with an entry, before training began."""
UNSEEN: Final = 10
"""After the last record of a killed session, up to its last sign of life."""
OTHER: Final = 11
"""In a user's span whose name is like no entry."""
SLOTS: Final = 12

SLOT_OF: Final = {entry: slot for slot, entry in enumerate(RECORDED)}
FIELDS: Final = tuple((LEDGER_PREFIX + entry, slot) for slot, entry in enumerate(RECORDED))

WORK: Final = (TRAINING, DATA_WAIT, VALIDATION, CHECKPOINT, SAMPLING, OTHER)
"""What is done again if a later session begins before it."""
WAITING: Final = (TRAINING, DATA_WAIT, REST, OTHER)
"""What may turn out to be a stall."""


@dataclass(slots=True, eq=False)
class Segment:
    """The seconds between two boundaries, by slot, with the steps done at both ends and the energy used."""

    first_step: int | None
    """Steps done at its start; None before the session's first step is known."""
    last_step: int | None
    seconds: list[float]
    joules: float = 0.0
    known_s: float = 0.0
    """Seconds for which the power is known."""
    saves: bool = field(default=False, kw_only=True)
    """It ends with a checkpoint of `last_step`."""

    def absorb(self, other: Segment) -> None:
        """Last until the end of `other`, the next one."""
        self.last_step, self.saves = other.last_step, other.saves
        self.seconds = [a + b for a, b in zip(self.seconds, other.seconds, strict=True)]
        self.joules += other.joules
        self.known_s += other.known_s


class Sums:
    """Seconds, energy and seconds with known power of many segments, by slot."""

    def __init__(self) -> None:
        self.seconds = [0.0] * SLOTS
        self.joules = [0.0] * SLOTS
        self.known_s = [0.0] * SLOTS

    def add(self, segments: Sequence[Segment]) -> None:
        """Add whole segments."""
        if not segments:
            return
        columns = zip(*[segment.seconds for segment in segments], strict=True)
        self.seconds = [total + sum(column) for total, column in zip(self.seconds, columns, strict=True)]
        for segment in segments:
            if segment.known_s:
                self._add_energy(segment, range(SLOTS), 1.0)

    def add_part(self, segment: Segment, slots: Iterable[int], fraction: float) -> None:
        """Add `fraction` of a segment's `slots`."""
        for slot in slots:
            self.seconds[slot] += segment.seconds[slot] * fraction
        if segment.known_s:
            self._add_energy(segment, slots, fraction)

    def move(self, source: int, target: int, seconds: float) -> None:
        """Move up to `seconds` from one slot to another, with their share of the energy."""
        there = self.seconds[source]
        moved = min(seconds, there)
        if moved <= 0.0:
            return
        for column in (self.seconds, self.joules, self.known_s):
            part = column[source] * (moved / there)
            column[source] -= part
            column[target] += part

    def _add_energy(self, segment: Segment, slots: Iterable[int], fraction: float) -> None:
        length = sum(segment.seconds)
        if length <= 0.0:
            return
        joules, known_s = segment.joules * fraction / length, segment.known_s * fraction / length
        for slot in slots:
            if seconds := segment.seconds[slot]:
                self.joules[slot] += joules * seconds
                self.known_s[slot] += known_s * seconds


def cut_off(segments: Sequence[Segment]) -> list[list[float]]:
    """Return the seconds of the last segments, as far back as checkpoints ended them."""
    found: list[list[float]] = []
    for segment in reversed(segments):
        if not segment.saves:
            break
        found.append(segment.seconds)
    return found


def waiting_seconds(segments: Iterable[Segment]) -> float:
    """Return the seconds that are a stall if no step comes for long."""
    return sum([segment.seconds[slot] for segment in segments for slot in WAITING])


def move_to_stalled(segments: Sequence[Segment], usual_s: float) -> None:
    """Keep `usual_s` of the waiting seconds of `segments` and move the others to stalled."""
    found = {slot: sum(segment.seconds[slot] for segment in segments) for slot in WAITING}
    too_many = sum(found.values()) - usual_s
    # Most of a long silence was spent where it hung; the usual work around it keeps its slot.
    for slot in sorted(WAITING, key=lambda slot: -found[slot]):
        moved = min(too_many, found[slot])
        if moved <= 0.0:
            continue
        too_many -= moved
        fraction = moved / found[slot]
        for segment in segments:
            part = segment.seconds[slot] * fraction
            segment.seconds[slot] -= part
            segment.seconds[STALLED] += part


def merged(segments: Sequence[Segment], target: int) -> list[Segment]:
    """Return `segments` with neighbours merged, half as many or fewer; ends at checkpoints are kept up to `target`."""
    kept = _pairs_merged(segments, across_checkpoints=False)
    return kept if len(kept) <= target else _pairs_merged(kept, across_checkpoints=True)


def _pairs_merged(segments: Sequence[Segment], *, across_checkpoints: bool) -> list[Segment]:
    result: list[Segment] = []
    is_single = False
    for segment in segments:
        if is_single and (across_checkpoints or not result[-1].saves):
            result[-1].absorb(segment)
            is_single = False
        else:
            result.append(segment)
            is_single = True
    return result
