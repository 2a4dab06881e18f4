"""Where two runs depart: to the last digit, else by a change test on the difference of their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from toolkit.telemetry.diagnostics.robust import change_sigma, median

Curve = Mapping[int, float]
"""The values of a metric by step."""

_LARGE_AFTER: Final = 4
"""Records that are equal to the last digit before a large difference counts as the first one."""
_MANY: Final = 12
"""Equal records after which a difference of the size of rounding counts as the first one, if they depart at all."""
_AT_ONCE: Final = 2
"""Records from the first digit that differs to a change, within which the two are one."""
ROUNDING: Final = {False: -6.0, True: -3.0}
"""How much of a loss rounding alone changes, as a power of ten; True: in half precision."""
_JUMP: Final = {False: 1.6, True: 1.0}
"""How far, in powers of ten, a difference jumps that is not rounding which grows."""
_WINDOW: Final = 3
_BLOCKS: Final = 8
_FAR, _TWICE_FAR = 6.0, 4.0
"""Standard errors by which the mean of one block differs, or of two neighbouring ones in the same direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What the shared records say. Steps are those that are done, so the first is 1."""

    steps: Sequence[int] = ()
    """At which both have a record."""
    how: Literal["bits", "jump", "level"] | None = None
    """What shows that they differ; None if nothing does."""
    metric: str = ""
    after: int = 0
    """The last shared step at which they do not differ yet; 0 if there is none."""
    at: int | None = None
    """The first shared step at which they differ."""
    first_digit: int | None = None
    """The first shared step at which any digit differs; None if all are equal."""
    size: float = 0.0
    """By how much of its value the metric differs at the departure, or at most where they do not depart."""
    before: float = 0.0
    """By how much it differed before."""
    noise: float = 0.0
    """How much of its value the metric changes from one record to the next in both runs."""
    few_digits: bool = False
    """Whether the log has rounded the values, so that equal digits say less."""
    half: bool = False
    """Whether both train in half precision, where rounding is coarser."""

    @property
    def beyond_noise(self) -> bool:
        """Whether no noise does this: they are alike for some records and then are not, or a value is not finite."""
        alike = sum(step <= self.after for step in self.steps)
        return self.size == 1.0 or (self.how in ("bits", "jump") and alike >= _LARGE_AFTER)


def find_departure(a: Mapping[str, Curve], b: Mapping[str, Curve], *, half: bool) -> Departure:
    """Compare the metrics that both have at the steps that both have; the first metric counts most."""
    shared = {name: sorted(a[name].keys() & b[name].keys()) for name in a if name in b}
    steps = sorted(set().union(*shared.values()))
    some = [value for name in shared for value in list(a[name].values())[:50] if math.isfinite(value)]
    few = all(float(f"{value:.5g}") == value for value in some)
    found = Departure(steps=steps, few_digits=few, half=half)
    differing = {
        name: first
        for name, at in shared.items()
        if (first := next((step for step in at if not _same(a[name][step], b[name][step])), None)) is not None
    }
    if not differing:
        return found
    first = min(differing.values())
    metric = next(name for name, step in differing.items() if step == first)
    place, size = steps.index(first), _ratio(a[metric][first], b[metric][first])
    found = replace(found, first_digit=first, metric=metric, size=size)
    exact = replace(found, how="bits", after=steps[place - 1] if place else 0, at=first)
    above = math.log10(size) - ROUNDING[half]
    if few or (place >= _LARGE_AFTER and above >= 1):
        return exact
    tests = [
        _change(replace(found, metric=name), shared[name], a[name], b[name])
        for name in shared
        if name in differing
    ]
    departed = [test for test in tests if test.at is not None]
    if not departed:
        return tests[0]
    earliest = min(departed, key=lambda test: test.at or 0)
    # Without rounding before it, or after many equal records, a change began at the first digit that differs.
    between = sum(first <= step < (earliest.at or 0) for step in steps)
    is_exact = between <= max(_AT_ONCE, place // 2) or (place >= _MANY and above >= -0.5)
    return exact if is_exact else earliest


def _change(found: Departure, steps: Sequence[int], a: Curve, b: Curve) -> Departure:
    """Return where the difference of one metric jumps, or its level departs from zero, in either direction."""
    one, two = [a[step] for step in steps], [b[step] for step in steps]
    ratios = [_ratio(x, y) for x, y in zip(one, two, strict=True)]
    level = median([abs(x) for x in one if math.isfinite(x)] or [0.0])
    noise = math.hypot(*(change_sigma(filter(math.isfinite, curve)) for curve in (one, two)))
    found = replace(found, size=max(ratios), noise=noise / level if level else 0.0)
    floor, least = ROUNDING[found.half], _JUMP[found.half]
    logs = [max(floor, math.log10(ratio) if ratio else floor) for ratio in ratios]
    how: Literal["jump", "level"] | None = None
    until = 0
    for at in range(len(logs) - min(_WINDOW, len(logs)) + 1):
        before = [*[floor] * (2 * _WINDOW - at), *logs[max(0, at - 2 * _WINDOW) : at]]
        near, far = median(before[-_WINDOW:]), median(before[:_WINDOW])
        here, later = (
            median(logs[at : at + _WINDOW]),
            median(logs[at + _WINDOW : at + 2 * _WINDOW] or logs[-1:]),
        )
        # Rounding that grows does so at a steady pace: only what is above that pace is a jump.
        if here - near - max(0.0, near - far, later - here) >= least and logs[at] - near >= 0.5 * least:
            how, found = "jump", replace(found, before=10**near)
            until = next(up for up in range(at, len(logs)) if logs[up] - near >= 0.75 * (here - near))
            break
    else:
        block = _level(one, two)
        if block is None:
            return found
        how, at, until = "level", block, block + len(one) // _BLOCKS - 1
    size = median(ratios[at : at + _WINDOW])
    return replace(found, how=how, after=steps[at - 1] if at else 0, at=steps[until], size=size)


def _level(one: Sequence[float], two: Sequence[float]) -> int | None:
    """Return where the block begins in which the means differ by more than the noise of both."""
    size = len(one) // _BLOCKS
    last = 0.0
    for at in range(0, size * _BLOCKS, size) if size >= _WINDOW else ():
        x, y = one[at : at + size], two[at : at + size]
        if not all(map(math.isfinite, (*x, *y))):
            return at
        error = math.hypot(change_sigma(x), change_sigma(y)) / math.sqrt(size)
        score = (sum(x) - sum(y)) / size / error if error else 0.0
        if abs(score) >= _FAR:
            return at
        if min(abs(score), abs(last)) >= _TWICE_FAR and score * last > 0:
            return at - size
        last = score
    return None


def _same(x: float, y: float) -> bool:
    return x == y or (math.isnan(x) and math.isnan(y))


def _ratio(x: float, y: float) -> float:
    """Return by how much of its size a value differs; 1 where one of them is not finite."""
    if _same(x, y):
        return 0.0
    if not (math.isfinite(x) and math.isfinite(y)):
        return 1.0
    return min(1.0, abs(x - y) / max(abs(x), abs(y)))
