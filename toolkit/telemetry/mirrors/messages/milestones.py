"""Milestones: a bound that a metric passes, or every so many steps."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.core.checks import wrong
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, STEP, SYSTEM, Record
from toolkit.telemetry.runfolder.untrusted import finite_in

MILESTONES_ALLOWED: Final = (
    'a metric and a bound such as "val_loss < 0.1" (with <, <=, > or >=), or "every 1000 steps"'
)
_WITH_METRICS: Final = (STEP, EVAL, EPOCH, SYSTEM)
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


class MilestoneWatch:
    """Finds the milestones that records reach: a bound once, `every N steps` repeatedly."""

    def __init__(self, milestones: Iterable[Milestone]) -> None:
        self._waiting = list(dict.fromkeys(milestones))
        self._last: dict[Milestone, int] = {}

    def take(self, record: Record) -> list[tuple[Milestone, str, float]]:
        """Return the milestones that `record` reaches, each with an id for this occurrence and the value."""
        event, step = record.get("event"), record.get("global_step")
        if event not in _WITH_METRICS:
            return []
        reached = []
        for one in [*self._waiting]:
            value = None if one.every else finite_in(record.get(one.metric))
            if value is not None and _SIGNS[one.sign](value, one.bound):
                reached.append((one, f"milestone:{one.text}", value))
                self._waiting.remove(one)
            elif one.every and event == STEP and isinstance(step, int):
                # A resumed run may begin at any step: what lies before its first step is not reached now.
                folded = record.get("steps_folded")
                before = step - 1 - (folded if isinstance(folded, int) else 0)
                last = self._last.setdefault(one, max(0, before) // one.every)
                # If one record passes several, only the newest is reported.
                if (times := step // one.every) > last:
                    reached.append((one, f"milestone:{one.text}:{times * one.every}", times * one.every))
                    self._last[one] = times
        return reached
