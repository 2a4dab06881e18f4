"""The state of one trainer call (a fit, a validation or a test): its open phases, its patches and its current step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.lightning.checkpoints import CheckpointTimer
from toolkit.telemetry.integrations.lightning.framework import TENSOR
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.open_phases import OpenPhases
from toolkit.telemetry.logger.records.loader_batches import LoaderBatches
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan


def _no_span(_: str) -> AnySpan:
    return NO_SPAN


def _end_no_iteration(_: AnySpan) -> None:
    return None


class BatchPhase:
    """The phase a batch is in, from waiting for it to the optimizer step; the next phase ends the previous one.

    Six hooks run in each batch, and a training leaves none of their code in the processor's caches: their cost is the
    amount of code they run. So these are plain spans, not phases of `log.training`.
    """

    __slots__ = ("_name", "_span", "begin_span")

    def __init__(self, begin_span: Callable[[str], AnySpan] = _no_span) -> None:
        self.begin_span = begin_span
        self._name = ""
        self._span: AnySpan | None = None

    def begin(self, name: str, *_: Any) -> None:
        """End the open phase, and begin this one. Nothing in here can fail."""
        span = self._span
        if span is not None:
            self._span = None
            span.__exit__(None, None, None)
        self._name, self._span = name, self.begin_span(name)

    def end(self, name: str | None = None, *_: Any, error: BaseException | None = None) -> None:
        """End the open phase, or only one of this name, normally or with `error`. Nothing in here can fail."""
        span = self._span
        if span is None or (name is not None and name != self._name):
            return
        self._span = None
        span.__exit__(None if error is None else type(error), error, None)


class OptimizerStep:
    """Collects one optimizer step at a time. A loss on a GPU is added up there, without waiting for it."""

    def __init__(self) -> None:
        self.number = 0
        """The latest completed step."""
        self.rates: dict[str, Any] = {}
        self.sizes = BatchSizes()
        self.seen: dict[str, Any] = {}
        """The module's metrics as last read for a step without a record."""
        self._loss: Any = None
        self._batches = 0
        self._is_first = True

    def add_loss(self, outputs: Any) -> None:
        """Add what `training_step` returned for a batch."""
        # Lightning itself passes a dict; checking for other mappings costs more than the rest of this.
        is_mapping = type(outputs) is dict or isinstance(outputs, Mapping)
        loss = as_number(outputs.get("loss") if is_mapping else outputs)
        if loss is None:
            return
        self._loss = loss if self._batches == 0 else self._loss + loss
        self._batches += 1

    def mean_loss(self, divided_by: int) -> Any:
        """Return the mean loss of the batches, each of which Lightning divided by `divided_by`; None without a loss."""
        if self._batches in (0, divided_by):
            return self._loss
        return self._loss * (divided_by / self._batches)

    def is_recorded(self, step: int, log_every: int) -> bool:
        """Return whether the logger writes a record of `step`, which may be several steps after the last."""
        return self._is_first or step // log_every > self.number // log_every

    def begin_after(self, step: int) -> None:
        """Begin the step after `step`."""
        self.number, self._is_first = step, False
        self.rates, self._loss, self._batches = {}, None, 0


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
    batch: BatchPhase = field(default_factory=BatchPhase)
    iteration: AnySpan | None = None
    """The open training iteration."""
    end_iteration: Callable[[AnySpan], None] = _end_no_iteration
    patches: MethodPatches = field(default_factory=MethodPatches)
    hooks: list[Any] = field(default_factory=list)
    """Handles that remove our hooks from the optimizers."""
    is_profiled: bool = False
    """Whether the module's methods are timed."""
    checkpoints: CheckpointTimer | None = None
    loaders: LoaderBatches | None = None
    step: OptimizerStep = field(default_factory=OptimizerStep)
    metrics_before: Mapping[str, Any] = field(default_factory=dict)
    """The module's metrics at the start of the evaluation, or the end of the epoch, that is recorded next."""
    passed_before: dict[str, Any] = field(default_factory=dict)
    """Metrics that were passed to the logger before the current evaluation."""
    epoch: tuple[int, int] | None = None
    """An epoch that ended and is not recorded yet, and its last step."""


def learning_rates(optimizers: Iterable[Any]) -> dict[str, Any]:
    """Return the current learning rate of each parameter group: `lr`, then `lr_1`, `lr_2`, …"""
    rates: dict[str, Any] = {}
    place = 0
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            rate = group.get("lr", rates)
            if rate is not rates:
                rates[f"lr_{place}" if place else "lr"] = as_number(rate) if type(rate) is TENSOR else rate
            place += 1
    return rates


def as_number(value: Any) -> Any:
    """Return the number that a tensor in host memory holds; anything else, such as a GPU tensor, as it is."""
    # A number costs the logger much less than a tensor. Tensors of other classes may be spread over several ranks.
    if type(value) is TENSOR and value.is_cpu and value.numel() == 1:
        return value.item()
    return value
