"""The state of one trainer call: a fit, a validation or a test, and its current step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.lightning.checkpoints import SavedCheckpoints
from toolkit.telemetry.integrations.lightning.framework import as_number
from toolkit.telemetry.integrations.lightning.phases import StepPhases


@dataclass(slots=True, eq=False)
class TrainerCall:
    """Begins with the trainer's `setup`, and is dropped at its end."""

    trainer: Any = None
    began_at: float | None = None
    is_ignored: bool = False
    """Whether nothing of it is written."""
    outer: TrainerCall | None = None
    """A call of another trainer during which this one is made."""
    parts: StepPhases | None = None
    """The parts of each step, if they are recorded."""
    checkpoints: SavedCheckpoints | None = None
    step: int = 0
    """The latest completed step."""
    is_first: bool = True
    sizes: BatchSizes = field(default_factory=BatchSizes)
    loss: Any = None
    """Of the batches of the current step, added up; on a GPU this is done there, without waiting for it."""
    batches: int = 0
    """How many batches that loss is of."""
    rates: dict[str, Any] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The module's metrics when the last record was written."""
    passed_before: dict[str, Any] = field(default_factory=dict)
    """Metrics that were passed to the logger before the current evaluation."""
    epoch: tuple[int, int] | None = None
    """An epoch that ended and is not recorded yet, and its last step."""

    def add_loss(self, outputs: Any) -> None:
        """Add what `training_step` returned for a batch."""
        # Lightning itself passes a dict; checking for other mappings costs more than the rest of this.
        is_mapping = type(outputs) is dict or isinstance(outputs, Mapping)
        loss = as_number(outputs.get("loss") if is_mapping else outputs)
        if loss is not None:
            self.loss = loss if self.batches == 0 else self.loss + loss
            self.batches += 1
