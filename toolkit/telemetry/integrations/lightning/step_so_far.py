"""The step of the optimizer that goes on: the loss of its batches, and the rates it is made with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.lightning.framework import TENSOR


class StepSoFar:
    """Gathers one step at a time. A loss on a GPU stays there: it is added up there, and nobody waits for it."""

    def __init__(self) -> None:
        self.number = 0
        """The latest step that was made."""
        self.rates: dict[str, Any] = {}
        self.sizes = BatchSizes()
        self.seen: dict[str, Any] = {}
        """The module's metrics as they were last read for a step without a record."""
        self._loss: Any = None
        self._batches = 0
        self._is_first = True

    def add_loss(self, outputs: Any) -> None:
        """Add what `training_step` returned for a further batch."""
        # As Lightning itself hands it over; looking for other mappings is costlier than all the rest of this.
        is_mapping = type(outputs) is dict or isinstance(outputs, Mapping)
        loss = as_number(outputs.get("loss") if is_mapping else outputs)
        if loss is None:
            return
        self._loss = loss if self._batches == 0 else self._loss + loss
        self._batches += 1

    def mean_loss(self, divided_by: int) -> Any:
        """Return the mean loss of the batches, each of which Lightning has divided by this; None where none has one."""
        if self._batches in (0, divided_by):
            return self._loss
        return self._loss * (divided_by / self._batches)

    def is_recorded(self, step: int, log_every: int) -> bool:
        """Return whether the logger writes a record of `step`, however many are made of one batch."""
        return self._is_first or step // log_every > self.number // log_every

    def begin_after(self, step: int) -> None:
        """Begin with the next one."""
        self.number, self._is_first = step, False
        self.rates, self._loss, self._batches = {}, None, 0


def learning_rates(optimizers: Iterable[Any]) -> dict[str, Any]:
    """Return the learning rate of each group of parameters as it is now: `lr`, then `lr_1`, `lr_2`, …"""
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return {
        f"lr_{i}" if i else "lr": as_number(group["lr"]) for i, group in enumerate(groups) if "lr" in group
    }


def as_number(value: Any) -> Any:
    """Return a tensor in host memory as the number that it holds; whatever else, one on a GPU above all, as it is."""
    # A number costs the logger much less than a tensor. Tensors of other classes may be spread over several ranks.
    if type(value) is TENSOR and value.is_cpu and value.numel() == 1:
        return value.item()
    return value
