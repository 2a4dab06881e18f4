"""Milestones: a bound that a metric passes, or every so many steps."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
        return _SIGNS[self.sign](value, self.bound)


_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def milestone_from(name: str, text: Any) -> Milestone:
    """Return the milestone in `text`, an item of the option `name`. Raises OptionsError if it is not one."""
    # Before matching: the text may have any length.
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise wrong(name, text, MILESTONES_ALLOWED)
    steps, bound = _EVERY.fullmatch(text), _BOUND.fullmatch(text)
    if steps is not None and (every := int(steps["steps"])) > 0:
        return Milestone(text=f"every {every} steps", every=every)
    with suppress(ValueError):
        number = finite_in(float(bound["number"])) if bound is not None else None
        if bound is not None and number is not None:
            metric, sign = bound["metric"], bound["sign"]
            return Milestone(
                text=f"{metric} {sign} {bound['number']}", metric=metric, sign=sign, bound=number
            )
    raise wrong(name, text, MILESTONES_ALLOWED)


_WITH_METRICS: Final = frozenset({STEP, EVAL, EPOCH, SYSTEM})
_LONGEST: Final = 200
_EVERY = re.compile(r"\s*every\s+(?P<steps>[0-9]{1,12})\s+steps?\s*", re.ASCII)
_BOUND = re.compile(r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[0-9.eE+-]+)\s*", re.ASCII)


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
        for milestone in list(self._bounds):
            value = finite_in(record.get(milestone.metric))
            if value is not None and milestone.is_passed_by(value):
                reached.append((milestone, f"milestone:{milestone.text}", value))
                self._bounds.remove(milestone)
        step, folded = record.get("global_step"), record.get("steps_folded")
        if event != STEP or not isinstance(step, int):
            return reached
        for milestone in self._steps:
            # A resumed run may begin at any step: what lies before its first step is not reached now.
            before = step - 1 - (folded if isinstance(folded, int) else 0)
            last = self._last.setdefault(milestone.text, max(0, before) // milestone.every)
            # If one record passes several, only the newest is reported.
            if (times := step // milestone.every) > last:
                at = times * milestone.every
                reached.append((milestone, f"milestone:{milestone.text}:{at}", float(at)))
                self._last[milestone.text] = times
        return reached
