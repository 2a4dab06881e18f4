"""Which milestones a run has reached."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, TypeGuard

from toolkit.mirrors.messages.milestones import Milestone
from toolkit.runfolder.records import EPOCH, EVAL, STEP, SYSTEM, Record

_WITH_METRICS: Final = frozenset({STEP, EVAL, EPOCH, SYSTEM})


class MilestoneWatch:
    """Looks at each record for milestones; a bound is reached once, and steps as often as they come round."""

    def __init__(self, milestones: Iterable[Milestone]) -> None:
        by_text = {milestone.text: milestone for milestone in milestones}
        self._bounds = [one for one in by_text.values() if not one.every]
        self._steps = [one for one in by_text.values() if one.every]
        self._last: dict[str, int] = {}

    def take(self, record: Record) -> list[tuple[Milestone, str, float]]:
        """Return the milestones that `record` reaches, each with a name for this time and the value that did it."""
        event = record.get("event")
        # A run folder may be given to the command by anybody, and a list can be in no set.
        if not isinstance(event, str) or event not in _WITH_METRICS:
            return []
        reached = []
        for milestone in self._bounds:
            value = record.get(milestone.metric)
            if _is_number(value) and milestone.is_passed_by(value):
                reached.append((milestone, f"milestone:{milestone.text}", float(value)))
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
                # A run that goes on begins anywhere: what lies before its first step is not reached by it.
                before = step - 1 - (folded if isinstance(folded, int) else 0)
                self._last[milestone.text] = max(0, before) // milestone.every
            times = step // milestone.every
            if times > self._last[milestone.text]:
                # Of several that one record passes, the newest is told.
                at = times * milestone.every
                reached.append((milestone, f"milestone:{milestone.text}:{at}", float(at)))
                self._last[milestone.text] = times
        return reached


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
