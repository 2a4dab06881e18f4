"""What is known during one call of the trainer: a fit, a validation or a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.telemetry.integrations.lightning.batch_part import BatchPart
from toolkit.telemetry.integrations.lightning.checkpoints import Checkpoints
from toolkit.telemetry.integrations.lightning.step_so_far import StepSoFar
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods


@dataclass(slots=True, eq=False)
class OneCall:
    """Begins with the trainer's `setup`, and is forgotten at its end."""

    trainer: Any = None
    began_at: float | None = None
    """By the monotonic clock."""
    is_left_out: bool = False
    """Whether nothing of it is written."""
    outer: OneCall | None = None
    """A call of another trainer, in the midst of which this one is made."""
    parts: OpenParts = field(default_factory=OpenParts)
    batch: BatchPart = field(default_factory=BatchPart)
    replaced: ReplacedMethods = field(default_factory=ReplacedMethods)
    hooked: list[Any] = field(default_factory=list)
    """What takes our hooks off the optimizers."""
    is_profiled: bool = False
    """Whether the module's methods are timed."""
    checkpoints: Checkpoints | None = None
    step: StepSoFar = field(default_factory=StepSoFar)
    metrics_before: Mapping[str, Any] = field(default_factory=dict)
    """The module's metrics when the evaluation began, or the epoch ended, that is told of next."""
    handed_before: dict[str, Any] = field(default_factory=dict)
    """What somebody had handed to the logger before the evaluation that goes on."""
    epoch: tuple[int, int] | None = None
    """An epoch that ended and was not told of yet, and the step it ended at."""
