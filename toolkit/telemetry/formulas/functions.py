"""What operators and functions compute, one value after the other."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Final

from toolkit.telemetry.formulas.formula import Call

Scalar = Callable[..., float]


def truth(value: float) -> bool:
    """Return whether a value counts as true: NaN does not."""
    return value == value and value != 0.0


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0.0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


SCALARS: Final[dict[str, Scalar]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "<": lambda a, b: 1.0 if a < b else 0.0,
    "<=": lambda a, b: 1.0 if a <= b else 0.0,
    ">": lambda a, b: 1.0 if a > b else 0.0,
    ">=": lambda a, b: 1.0 if a >= b else 0.0,
    "==": lambda a, b: 1.0 if a == b else 0.0,
    "!=": lambda a, b: 1.0 if a != b else 0.0,
    "and": lambda a, b: 1.0 if truth(a) and truth(b) else 0.0,
    "or": lambda a, b: 1.0 if truth(a) or truth(b) else 0.0,
    "negative": operator.neg,
    "abs": abs,
    "log": _log,
    "exp": _exp,
    "sqrt": lambda x: math.nan if x < 0 else math.sqrt(x),
    "last": float,
}
TAKES_MISSING: Final = ("and", "or")
"""Of these, a side that was not logged yet is false; all others wait until every metric was logged."""


class Follower:
    """A function that looks at several records."""

    def take(self, value: float) -> float | None:
        """Return its value after one more value of its argument; None if it has none there."""
        raise NotImplementedError

    def restart(self) -> None:
        """Forget what another session logged, unless the function is about the whole run."""


class _Ema(Follower):
    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._sum = self._weights = 0.0

    def take(self, value: float) -> float:
        if value - value != 0.0:
            # NaN and infinity are shown, and the average goes on from before.
            return value
        self._sum = self._weight * self._sum + (1.0 - self._weight) * value
        self._weights = self._weight * self._weights + (1.0 - self._weight)
        return self._sum / self._weights

    def restart(self) -> None:
        self._sum = self._weights = 0.0


class _Mean(Follower):
    """Joins the last values in constant time: the rest of the block before and the begun block.

    Not by a running sum: after one huge value that would be wrong for good.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._block: list[float] = []
        self._rest: list[tuple[float, int]] = []
        self._sum, self._count = 0.0, 0

    def take(self, value: float) -> float:
        self._block.append(value)
        if value == value:
            self._sum += value
            self._count += 1
        begun, total, count = len(self._block), self._sum, self._count
        if begun < len(self._rest):
            total, count = total + self._rest[begun][0], count + self._rest[begun][1]
        if begun == self._length:
            self._rest = [(0.0, 0)]
            for one in reversed(self._block):
                known, numbers = self._rest[-1]
                self._rest.append((known + one, numbers + 1) if one == one else (known, numbers))
            self._rest.reverse()
            self._block, self._sum, self._count = [], 0.0, 0
        return total / count if count else math.nan

    def restart(self) -> None:
        self._block, self._rest, self._sum, self._count = [], [], 0.0, 0


class _Ordered(Follower):
    """The lowest, highest or middle one of the last values; NaN is neither."""

    def __init__(self, function: str, length: int) -> None:
        self._function, self._length = function, length
        self._values: deque[float] = deque()
        self._ordered: list[float] = []

    def take(self, value: float) -> float:
        ordered = self._ordered
        self._values.append(value)
        if value == value:
            insort(ordered, value)
        if len(self._values) > self._length and (old := self._values.popleft()) == old:
            del ordered[bisect_left(ordered, old)]
        if not ordered:
            return math.nan
        if self._function != "median":
            return ordered[0 if self._function == "min" else -1]
        half = len(ordered) // 2
        return ordered[half] if len(ordered) % 2 else 0.5 * ordered[half - 1] + 0.5 * ordered[half]

    def restart(self) -> None:
        self._values.clear()
        self._ordered.clear()


class _OfRun(Follower):
    """The lowest, highest or first of all values so far; NaN does not count, for `best` neither does infinity."""

    def __init__(self, call: Call) -> None:
        self._needs_finite = call.function == "best"
        wanted = call.direction or call.function
        self._join: Scalar = {"min": min, "max": max}.get(wanted, lambda first, _: first)
        self._value = math.nan

    def take(self, value: float) -> float:
        if value == value and not (self._needs_finite and math.isinf(value)):
            self._value = value if self._value != self._value else self._join(self._value, value)
        return self._value


class _Delta(Follower):
    _before: float | None = None

    def take(self, value: float) -> float | None:
        before, self._before = self._before, value
        return None if before is None else value - before

    def restart(self) -> None:
        self._before = None


def follower_of(call: Call) -> Follower:
    """Return the function of `call`, which looks at several records, at its beginning."""
    if call.function == "ema":
        return _Ema(call.window or 0.0)
    if call.function == "delta":
        return _Delta()
    if call.window is None:
        return _OfRun(call)
    length = int(call.window)
    return _Mean(length) if call.function == "mean" else _Ordered(call.function, length)
