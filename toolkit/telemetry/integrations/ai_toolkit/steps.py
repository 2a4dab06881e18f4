"""The steps of a trainer of ai-toolkit: its losses, its gradient, its rate and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.core.guard import guarded
from toolkit.telemetry.integrations.ai_toolkit.description import is_costly_rate, learning_rate
from toolkit.telemetry.integrations.ai_toolkit.outputs import VALIDATION_LOSS
from toolkit.telemetry.integrations.ai_toolkit.surrounded_methods import SurroundedMethods
from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.open_parts import OpenParts
from toolkit.telemetry.logger import TelemetryLogger
from toolkit.timing.names import BACKWARD, DATA_LOADING, FORWARD, OPTIMIZER_UPDATE, TRAINING_ITERATION

_PART_OF_TIMER: Final = {
    "train_loop": TRAINING_ITERATION,
    "get_batch": DATA_LOADING,
    "get_batch:reg": DATA_LOADING,
    "reset_batch": DATA_LOADING,
    "reset_batch:reg": DATA_LOADING,
    "predict_unet": FORWARD,
    "backward": BACKWARD,
    "optimizer_step": OPTIMIZER_UPDATE,
}
"""ai-toolkit's own timers, and what they time in our words."""


class Steps:
    """Tells of each step once, with what ai-toolkit itself would log of it."""

    def __init__(self, process: Any, log: TelemetryLogger, parts: OpenParts) -> None:
        self.guard = log.guard
        self.is_live = True
        """Whether the hooks have an effect."""
        self._process = process
        self._log = log
        self._parts = parts
        self._step = 0
        self._losses: Any = None
        self._norms: list[Any] = []
        self._sizes = BatchSizes()
        self._older_logs: dict[str, Any] = {}
        """What earlier steps have left in ai-toolkit's `additional_logs`, which it empties only when it logs."""
        self._rate: Any = None
        self._rate_is_from: int | None = None
        self._epoch: int | None = None
        self._epoch_loss, self._epoch_steps = 0.0, 0

    def watch(self, methods: SurroundedMethods) -> None:
        """Put the hooks."""
        process = self._process
        methods.around(process, "hook_train_loop", before=self._begins, after=self._ends, failed=self._fails)
        methods.around(getattr(process, "accelerator", None), "clip_grad_norm_", after=self._clipped)
        timer = getattr(process, "timer", None)
        methods.around(timer, "start", before=self._timer_starts)
        for name in ("stop", "cancel"):
            methods.around(timer, name, after=self._timer_stops)

    @guarded
    def tell(self) -> None:
        """Tell of the step that has ended, unless that is done."""
        losses, self._losses = self._losses, None
        if losses is None:
            return
        process, step = self._process, self._step
        loss, others = _losses_by_name(losses)
        with self.guard.catch("telling of an epoch"):
            self._count_for_epoch(process.epoch_num, step, loss)
        norm = None
        with self.guard.catch("adding up the gradient's parts"):
            norm = _length_of(self._norms)
        # A name that a trainer's own log has must not take the place of a field's.
        fields = {
            **self._fresh_logs(),
            **others,
            "global_step": step,
            "train_loss": loss,
            "lr": self._learning_rate(step),
            "grad_norm": norm,
            "epoch": process.epoch_num,
        }
        share = self._sizes.share()
        if share < 1.0:
            self._log.count_samples(share)
        self._log.log_step(**fields)

    @guarded
    def _begins(self, batch_list: Any = (), *_: Any, **__: Any) -> None:
        self._norms.clear()
        self._sizes.begin()
        for batch in batch_list if isinstance(batch_list, (list, tuple)) else (batch_list,):
            self._sizes.add(batch)
        self._step = self._process.step_num
        self._older_logs = self._additional_logs()

    @guarded
    def _clipped(self, norm: Any, *_: Any, **__: Any) -> None:
        if norm is not None:
            self._norms.append(norm)

    @guarded
    def _ends(self, losses: Any, *_: Any, **__: Any) -> None:
        self._losses = losses

    @guarded
    def _fails(self, error: BaseException) -> None:
        if _is_out_of_memory(error):
            self._log.log_event(
                "oom",
                global_step=self._step,
                message=str(error)[:500],
                consecutive=getattr(self._process, "num_consecutive_oom", 0) + 1,
            )

    @guarded
    def _timer_starts(self, name: Any = None, *_: Any, **__: Any) -> None:
        part = _PART_OF_TIMER.get(name)
        if part is None:
            return
        training = self._log.training
        if part == TRAINING_ITERATION:
            self._parts.begin(part, training.training_iteration())
        elif part == DATA_LOADING:
            self._parts.begin(part, training.data_loading())
        elif part == FORWARD:
            self._parts.begin(part, training.forward())
        elif part == BACKWARD:
            self._parts.begin(part, training.backward())
        else:
            self._parts.begin(part, training.optimizer_update())

    @guarded
    def _timer_stops(self, _: Any, name: Any = None, *__: Any, **___: Any) -> None:
        part = _PART_OF_TIMER.get(name)
        if part is not None:
            self._parts.end_with_inner(part)
            if part == TRAINING_ITERATION:
                self.tell()

    def _additional_logs(self) -> dict[str, Any]:
        found = getattr(self._process, "additional_logs", None)
        return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}

    def _fresh_logs(self) -> dict[str, Any]:
        """Return what this step has added; another number is another object, be it the same by chance."""
        return {
            name: value
            for name, value in self._additional_logs().items()
            if value is not self._older_logs.get(name) and name != VALIDATION_LOSS
        }

    def _count_for_epoch(self, epoch: int, step: int, loss: Any) -> None:
        """Add a step's loss to its epoch's, and tell of the epoch before it where that is over."""
        before, self._epoch = self._epoch, epoch
        if before is not None and epoch > before:
            count, total = self._epoch_steps, self._epoch_loss
            self._epoch_loss, self._epoch_steps = 0.0, 0
            mean: dict[str, Any] = {"train_loss": total / count} if count else {}
            self._log.log_epoch(epoch, global_step=step - 1, **mean)
        if isinstance(loss, float):
            self._epoch_loss += loss
            self._epoch_steps += 1

    def _learning_rate(self, step: int) -> Any:
        if self._rate_is_from is None or step - self._rate_is_from >= self._log.log_every:
            with self.guard.catch("reading the learning rate"):
                self._rate = learning_rate(self._process)
                self._rate_is_from = step if is_costly_rate(self._process) else None
        return self._rate


def _losses_by_name(losses: Any) -> tuple[Any, dict[str, Any]]:
    """Return the loss and the others that a step has, named as in ai-toolkit's own log."""
    if not isinstance(losses, Mapping):
        return losses, {}
    others = {f"loss/{name}": value for name, value in losses.items() if name != "loss"}
    if "loss" in losses:
        return losses["loss"], others
    return next(iter(losses.values()), None), others


def _length_of(norms: Sequence[Any]) -> Any:
    """Return the length of the whole gradient, whose parts were clipped one by one, without asking a device for it."""
    if len(norms) < 2:
        return norms[0] if norms else None
    return sum(norm * norm for norm in norms) ** 0.5


def _is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error)
