"""What a milestone may be: a bound that a metric passes, or so many steps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from toolkit.core.checks import wrong

MILESTONES_ALLOWED: Final = (
    'a metric and a bound such as "val_loss < 0.1" (with <, <=, > or >=), or "every 1000 steps"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """One milestone: either `metric`, `sign` and `bound`, or `every`."""

    text: str
    """As people write and read it."""
    metric: str = ""
    sign: str = ""
    bound: float = 0.0
    every: int = 0
    """Steps from one to the next; 0 for one that a metric reaches."""

    def is_passed_by(self, value: float) -> bool:
        """Say whether the metric, at `value`, is where the milestone stands; a NaN never is."""
        if self.sign == "<":
            return value < self.bound
        if self.sign == "<=":
            return value <= self.bound
        return value > self.bound if self.sign == ">" else value >= self.bound


def milestone_from(name: str, text: Any) -> Milestone:
    """Return the milestone that `text`, an item of the option called `name`, states.

    Raises:
        OptionsError: it states none.
    """
    # A text of any length may stand there, and no milestone is long.
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise wrong(name, text, MILESTONES_ALLOWED)
    steps = _EVERY.fullmatch(text)
    if steps is not None and int(steps["steps"]) > 0:
        every = int(steps["steps"])
        return Milestone(text=f"every {every} steps", every=every)
    bound = _BOUND.fullmatch(text)
    number = _finite(bound["number"]) if bound is not None else None
    if bound is None or number is None:
        raise wrong(name, text, MILESTONES_ALLOWED)
    metric, sign = bound["metric"], bound["sign"]
    return Milestone(text=f"{metric} {sign} {bound['number']}", metric=metric, sign=sign, bound=number)


_LONGEST: Final = 200
_EVERY = re.compile(r"\s*every\s+(?P<steps>[0-9]{1,12})\s+steps?\s*", re.ASCII)
_BOUND = re.compile(r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[0-9.eE+-]+)\s*", re.ASCII)


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
