"""What the losses of steps that were done twice show about a resume, measured by the noise of the run itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from toolkit.telemetry.diagnostics.robust import change_sigma, median

WITHIN: Final = 0.02
"""A right resume on kernels that are not deterministic differs by less, in units of the noise between two steps."""
APART: Final = 0.05
"""A departure differs by more, on the average of the first records."""
SMALL: Final = 0.6
"""More than other random numbers, or a warm-up, can do."""
_FIRST: Final = 10
_EQUAL: Final = 0.001
_AT_ONCE: Final = 0.004
_JUMP: Final = 6.0
_LEVEL: Final = 8


@dataclass(frozen=True, slots=True)
class Departure:
    """How far the repeated losses are from the abandoned ones; `by` is in units of the noise, the first step first."""

    steps: Sequence[int] = ()
    by: Sequence[float] = ()
    noise: float = 0.0
    pairs: Sequence[tuple[float, float]] = ()

    @property
    def count(self) -> int:
        """How many losses exist twice."""
        return len(self.by)

    @property
    def last(self) -> int:
        """The last step that exists twice."""
        return self.steps[-1] if self.steps else 0

    @property
    def is_equal(self) -> bool:
        """Whether all of them are equal in every digit."""
        return all(before == after for before, after in self.pairs)

    @property
    def alike(self) -> Sequence[float]:
        """The first differences that are nearly nothing."""
        return list(takewhile(lambda one: abs(one) < _EQUAL, self.by))

    @property
    def size(self) -> float:
        """How far the first records are apart on average."""
        first = self.by[:_FIRST]
        return math.sqrt(sum(one * one for one in first) / len(first)) if first else 0.0

    @property
    def farthest(self) -> float:
        """How far the first records are apart at most, as a part of the loss."""
        first = self.pairs[:_FIRST]
        return max(
            (abs(after - before) / max(abs(before), abs(after), 1e-12) for before, after in first),
            default=0.0,
        )

    @property
    def departs(self) -> bool:
        """Whether they are further apart than kernels that are not deterministic explain."""
        return self.size >= APART


def compare(old: Mapping[int, float], new: Mapping[int, float], step: int) -> Departure:
    """Return how the losses after `step` differ that exist twice."""
    both = [at for at in new if at > step and at in old and math.isfinite(old[at] - new[at])]
    if not both:
        return Departure()
    noise = _noise(old, both[0])
    pairs = [(old[at], new[at]) for at in both]
    return Departure(both, [(after - before) / noise for before, after in pairs], noise, pairs)


def causes_of(
    seen: Departure, old: Mapping[int, float], new: Mapping[int, float], step: int, epochs: Sequence[int]
) -> list[str]:
    """Return the causes that fit the way in which the losses depart, the best one first.

    `epochs` are the first steps of the epochs before.
    """
    first, later = seen.by[0], seen.by[1:_FIRST]
    mean = sum(seen.by[:_FIRST]) / len(seen.by[:_FIRST])
    is_next = seen.steps[0] == step + 1
    if is_next and abs(first) < _AT_ONCE:
        # Weights, batch and random numbers of the first step are right: what the update needs is not.
        is_behind = len(later) > 2 and sum(one > 0 for one in later) >= 0.85 * len(later)
        return ["scaler_lost", "optimizer_lost"] if is_behind else ["optimizer_lost", "scaler_lost"]
    if not is_next and abs(first) < APART / 5:
        return ["scaler_lost", "optimizer_lost"]
    spread = math.sqrt(sum((one - mean) ** 2 for one in seen.by[:_FIRST]) / len(seen.by[:_FIRST]))
    if abs(mean) > 1.2 * spread and seen.size >= SMALL / 2 and seen.count > 2:
        third = max(len(seen.by) // 3, 1)
        stays = abs(sum(seen.by[-third:])) > 0.7 * abs(sum(seen.by[:third])) and abs(mean) > 2 * spread
        return ["code_or_config", "wrong_checkpoint"] if stays else ["wrong_checkpoint", "code_or_config"]
    if seen.size < SMALL / 1.5:
        return ["rng", "optimizer_lost", "wrong_checkpoint"]
    if _like(old, new, seen.steps, 0) > 0.7:
        return ["wrong_checkpoint", "code_or_config", "batch_size"]
    later_steps = [at for at in sorted(new) if at > step]
    again = max(
        (_like(old, new, later_steps, first - step - 1) for first in epochs if first <= step), default=0.0
    )
    return [
        "data_from_start" if again > 0.6 else "data_skipped",
        "data_skipped",
        "data_from_start",
        "batch_size",
    ]


def level_jump(old: Mapping[int, float], new: Mapping[int, float], step: int) -> float | None:
    """Return how far the first losses after `step` are above the last ones before, in units of the noise.

    None with too few of them to say so.
    """
    before = [old[at] for at in sorted(old) if at <= step and math.isfinite(old[at])][-_LEVEL:]
    after = [new[at] for at in sorted(new) if at > step and math.isfinite(new[at])][:4]
    if len(before) < 4 or len(after) < 2:
        return None
    spread = median([abs(one - median(before)) for one in before]) * 1.4826
    noise = max(change_sigma(before), spread, 1e-9 * abs(median(before)), 1e-12)
    return (median(after) - median(before)) / noise


def is_jump(by: float | None) -> bool:
    """Return whether the level of the loss is another one after a resume."""
    return by is not None and by > _JUMP


def _noise(old: Mapping[int, float], around: int) -> float:
    known = [old[at] for at in sorted(old) if math.isfinite(old[at])]
    place = sum(at < around for at in old)
    near = known[max(place - 12, 0) : place + 12]
    return max(change_sigma(near) if len(near) > 2 else 0.0, 1e-6 * max(map(abs, near), default=0.0), 1e-12)


def _like(old: Mapping[int, float], new: Mapping[int, float], steps: Sequence[int], shift: int) -> float:
    """Return how the old losses `shift` away are like the new ones: what each differs by from its two neighbours."""
    pairs = [(old[at + shift], new[at]) for at in steps if at + shift in old and at in new]
    bends = [
        (b[0] - 0.5 * (a[0] + c[0]), b[1] - 0.5 * (a[1] + c[1]))
        for a, b, c in zip(pairs, pairs[1:], pairs[2:], strict=False)
    ]
    top = sum(a * b for a, b in bends)
    below = math.sqrt(sum(a * a for a, _ in bends) * sum(b * b for _, b in bends))
    return top / below if below and len(bends) > 3 else 0.0
