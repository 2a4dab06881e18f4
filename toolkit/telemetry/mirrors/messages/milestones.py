"""Milestones: a bound that a metric passes, or every so many steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.core.checks import wrong
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, STEP, SYSTEM, Record
from toolkit.telemetry.runfolder.untrusted import finite_in

MILESTONES_ALLOWED: Final = (
    'a metric and a bound such as "val_loss < 0.1" (with <, <=, > or >=), or "every 1000 steps"'
)


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

    def is_passed_by(self, value: float) -> bool:
        """Return whether `value` of the metric reaches the milestone; NaN never does."""
        if self.sign == "<":
            return value < self.bound
        if self.sign == "<=":
            return value <= self.bound
        return value > self.bound if self.sign == ">" else value >= self.bound


def milestone_from(name: str, text: Any) -> Milestone:
    """Return the milestone in `text`, an item of the option `name`. Raises OptionsError if it is not one."""
    # Before matching: the text may have any length.
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


_WITH_METRICS: Final = frozenset({STEP, EVAL, EPOCH, SYSTEM})
_LONGEST: Final = 200
_EVERY = re.compile(r"\s*every\s+(?P<steps>[0-9]{1,12})\s+steps?\s*", re.ASCII)
_BOUND = re.compile(r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[0-9.eE+-]+)\s*", re.ASCII)


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class MilestoneWatch:
    """Finds the milestones that records reach: a bound once, `every N steps` repeatedly."""

    def __init__(self, milestones: Iterable[Milestone]) -> None:
        by_text = {milestone.text: milestone for milestone in milestones}
        self._bounds = [one for one in by_text.values() if not one.every]
        self._steps = [one for one in by_text.values() if one.every]
        self._last: dict[str, int] = {}

    def take(self, record: Record) -> list[tuple[Milestone, str, float]]:
        """Return the milestones that `record` reaches, each with an id for this occurrence and the value."""
        event = record.get("event")
        # A record of a foreign run folder may hold anything here, also a list, which cannot be in a set.
        if not isinstance(event, str) or event not in _WITH_METRICS:
            return []
        reached = []
        for milestone in self._bounds:
            value = finite_in(record.get(milestone.metric))
            if value is not None and milestone.is_passed_by(value):
                reached.append((milestone, f"milestone:{milestone.text}", value))
        if reached:
            passed = {milestone.text for milestone, _, _ in reached}
            self._bounds = [one for one in self._bounds if one.text not in passed]
        step = record.get("global_step")
        if event == STEP and isinstance(step, int) and self._steps:
            reached += self._steps_passed(step, record.get("steps_folded"))
        return reached

    def _steps_passed(self, step: int, folded: object) -> list[tuple[Milestone, str, float]]:
        reached = []
        for milestone in self._steps:
            if milestone.text not in self._last:
                # A resumed run may begin at any step: what lies before its first step is not reached now.
                before = step - 1 - (folded if isinstance(folded, int) else 0)
                self._last[milestone.text] = max(0, before) // milestone.every
            times = step // milestone.every
            if times > self._last[milestone.text]:
                # If one record passes several, only the newest is reported.
                at = times * milestone.every
                reached.append((milestone, f"milestone:{milestone.text}:{at}", float(at)))
                self._last[milestone.text] = times
        return reached
