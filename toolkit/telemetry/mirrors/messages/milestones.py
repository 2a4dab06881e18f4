"""Milestones: a bound that a metric passes, or every so many steps."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.core.checks import wrong
from toolkit.telemetry.runfolder.records import STEP, Record
from toolkit.telemetry.runfolder.untrusted import finite_in

MILESTONES_ALLOWED: Final = (
    'a metric and a bound such as "val_loss < 0.1" (with <, <=, > or >=), or "every 1000 steps"'
)
_EVERY = re.compile(r"\s*every\s+([1-9][0-9]{0,11})\s+steps?\s*")
_BOUND = re.compile(
    r"\s*([^\s<>=!]{1,200})\s*(<=|>=|<|>)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*"
)
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """One milestone: either `metric`, `sign` and `bound`, or `every`."""

    text: str
    """As written in the options."""
    metric: str = ""
    sign: str = ""
    bound: float = 0.0
    every: int = 0
    """Steps from one to the next; 0 for a bound."""

    def reached_by(self, record: Record, last_step: int) -> float | None:
        """Return the value or step by which `record`, the next one after `last_step`, reaches it; None if none does."""
        if self.every:
            step = record.get("global_step") if record.get("event") == STEP else None
            # If one record passes several, only the newest is reported.
            is_passed = isinstance(step, int) and step // self.every > last_step // self.every
            return step - step % self.every if is_passed and step is not None else None
        value = finite_in(record.get(self.metric))
        return value if value is not None and _SIGNS[self.sign](value, self.bound) else None


def milestone_from(name: str, text: Any) -> Milestone:
    """Return the milestone in `text`, an item of the option `name`. Raises OptionsError if it is not one."""
    given = text if isinstance(text, str) and len(text) <= 300 else ""
    if steps := _EVERY.fullmatch(given):
        return Milestone(text=f"every {steps[1]} steps", every=int(steps[1]))
    bound = _BOUND.fullmatch(given)
    number = finite_in(float(bound[3])) if bound else None
    if bound is None or number is None:
        raise wrong(name, text, MILESTONES_ALLOWED)
    return Milestone(text=" ".join(bound.groups()), metric=bound[1], sign=bound[2], bound=number)
