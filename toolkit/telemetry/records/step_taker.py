"""Where `log_step` hands over a step that it does not fold by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from toolkit.core.clock import Clock, SystemClock
from toolkit.telemetry.records.step_gate import StepGate

_Take = Callable[[Any, Any, dict[str, Any], dict[str, Any]], None]


class Ranks(Protocol):
    """Several ranks that do what is requested at the same step."""

    def at_step(self, step: Any) -> None:
        """Do what was agreed for `step`."""


class StepTaker:
    """What a live logger, one that is off and a silent rank do with a step.

    `take` gets the step, its loss, its well-known fields and the others. It must not raise: a training loop calls it.
    `is_special` is false for a live logger of a single rank, so that its steps need one look at this object.
    """

    __slots__ = ("began", "gate", "is_special", "monotonic", "ranks", "take", "wall")

    def __init__(
        self,
        take: _Take,
        gate: StepGate,
        *,
        clock: Clock,
        began: float,
        ranks: Ranks | None = None,
        is_live: bool = True,
    ) -> None:
        self.take = take
        self.gate = gate
        self.wall = clock.wall
        self.monotonic = clock.monotonic
        self.began = began
        self.ranks = ranks
        self.is_special = ranks is not None or not is_live


def silent_steps(ranks: Ranks | None) -> StepTaker:
    """Return what takes the steps of a logger that writes nothing, and of one that follows the other ranks."""
    return StepTaker(_ignore, StepGate(), clock=SystemClock(), began=0.0, ranks=ranks, is_live=False)


def _ignore(_: Any, __: Any, ___: dict[str, Any], ____: dict[str, Any]) -> None:
    """Drop a step."""


NO_STEPS = silent_steps(None)
"""For a logger that is not live."""
