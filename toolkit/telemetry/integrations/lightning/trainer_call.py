"""The state of one trainer call: a fit, a validation or a test, its open phases and its current step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.lightning.checkpoints import SavedCheckpoints
from toolkit.telemetry.integrations.lightning.framework import TENSOR
from toolkit.telemetry.integrations.lightning.phases import StepPhases
from toolkit.telemetry.integrations.open_phases import OpenPhases
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan


def _no_span(_: str) -> AnySpan:
    return NO_SPAN


def _end_no_iteration(_: AnySpan) -> None:
    return None


@dataclass(slots=True, eq=False)
class TrainerCall:
    """Begins with the trainer's `setup`, and is dropped at its end."""

    trainer: Any = None
    began_at: float | None = None
    """By the monotonic clock."""
    is_ignored: bool = False
    """Whether nothing of it is written."""
    outer: TrainerCall | None = None
    """A call of another trainer during which this one is made."""
    phases: OpenPhases = field(default_factory=OpenPhases)
    parts: StepPhases | None = None
    """The parts of each step, if they are recorded."""
    checkpoints: SavedCheckpoints | None = None
    begin_part: Callable[[str], AnySpan] = _no_span
    end_iteration: Callable[[AnySpan], None] = _end_no_iteration
    iteration: AnySpan | None = None
    """The open training iteration."""
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


def learning_rates(optimizers: Iterable[Any]) -> dict[str, Any]:
    """Return the current learning rate of each parameter group: `lr`, then `lr_1`, `lr_2`, …"""
    rates: dict[str, Any] = {}
    place = 0
    # Loops: this is called in every step.
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            if "lr" in group:
                rate = group["lr"]
                rates[f"lr_{place}" if place else "lr"] = as_number(rate) if type(rate) is TENSOR else rate
            place += 1
    return rates


def as_number(value: Any) -> Any:
    """Return the number that a tensor in host memory holds; anything else, such as a GPU tensor, as it is."""
    # A number costs the logger much less than a tensor. Tensors of other classes may be spread over several ranks.
    if type(value) is TENSOR and value.is_cpu and value.numel() == 1:
        return value.item()
    return value
