"""The steps of an ai-toolkit trainer: losses, gradient norm, learning rate, and the phases of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.integrations.ai_toolkit.outputs import VALIDATION_LOSS
from toolkit.telemetry.integrations.ai_toolkit.start_fields import is_costly_rate, learning_rate
from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.integrations.metric_names import split_losses
from toolkit.telemetry.integrations.open_phases import OpenPhases
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.timing.names import (
    BACKWARD,
    DATA_LOADING,
    FORWARD,
    OPTIMIZER_UPDATE,
    TRAINING_ITERATION,
)

_PHASE_OF_TIMER: Final = {
    "train_loop": TRAINING_ITERATION,
    "get_batch": DATA_LOADING,
    "get_batch:reg": DATA_LOADING,
    "reset_batch": DATA_LOADING,
    "reset_batch:reg": DATA_LOADING,
    "predict_unet": FORWARD,
    "backward": BACKWARD,
    "optimizer_step": OPTIMIZER_UPDATE,
}
"""ai-toolkit's own timers, and the phases they time."""


class Steps:
    """Writes each step once, with what ai-toolkit itself would log for it."""

    def __init__(self, process: Any, log: TelemetryLogger, phases: OpenPhases) -> None:
        self._process = process
        self._log = log
        self._guard = log.guard
        self._phases = phases
        self._step = 0
        self._losses: Any = None
        self._norms: list[Any] = []
        self._sizes = BatchSizes()
        self._older_logs: dict[str, Any] = {}
        """What earlier steps left in ai-toolkit's `additional_logs`, which it clears only when it logs."""
        self._rate: Any = None
        self._rate_step: int | None = None
        self._epoch: int | None = None
        self._epoch_loss, self._epoch_steps = 0.0, 0

    def watch(self, patches: MethodPatches) -> None:
        """Patch the methods."""
        process = self._process
        patches.around(process, "hook_train_loop", before=self._begin, after=self._end, failed=self._fail)
        patches.around(getattr(process, "accelerator", None), "clip_grad_norm_", after=self._take_norm)
        timer = getattr(process, "timer", None)
        patches.around(timer, "start", before=self._begin_timer)
        for name in ("stop", "cancel"):
            patches.around(timer, name, after=self._end_timer)

    def write(self) -> None:
        """Write the step that has ended, unless that was done."""
        losses, self._losses = self._losses, None
        if losses is None:
            return
        process, step = self._process, self._step
        loss, others = split_losses(losses)
        with self._guard.catch("recording an epoch"):
            self._count_for_epoch(process.epoch_num, step, loss)
        norm = None
        with self._guard.catch("combining the gradient norms"):
            norm = _combined(self._norms)
        # A name in the trainer's own log must not replace a field of ours.
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
            internals(self._log).count_samples(share)
        self._log.log_step(**fields)

    def _begin(self, batch_list: Any = (), *_: Any, **__: Any) -> None:
        self._norms.clear()
        batches = batch_list if isinstance(batch_list, (list, tuple)) else (batch_list,)
        self._sizes.count(batches)
        self._step = self._process.step_num
        for batch in batches:
            items = getattr(batch, "file_items", None) or ()
            if items and all(isinstance(getattr(item, "path", None), str) for item in items):
                self._log.batch(["/".join(Path(item.path).parts[-2:]) for item in items], step=self._step)
        self._older_logs = self._additional_logs()

    def _take_norm(self, norm: Any, *_: Any, **__: Any) -> None:
        if norm is not None:
            self._norms.append(norm)

    def _end(self, losses: Any, *_: Any, **__: Any) -> None:
        self._losses = losses

    def _fail(self, error: BaseException) -> None:
        if _is_out_of_memory(error):
            self._log.log_event(
                "oom",
                global_step=self._step,
                message=str(error)[:500],
                consecutive=getattr(self._process, "num_consecutive_oom", 0) + 1,
            )

    def _begin_timer(self, name: Any = None, *_: Any, **__: Any) -> None:
        phase = _PHASE_OF_TIMER.get(name)
        if phase is not None:
            # The phases have the names of their methods.
            self._phases.begin(phase, getattr(self._log.training, phase)())

    def _end_timer(self, _: Any, name: Any = None, *__: Any, **___: Any) -> None:
        phase = _PHASE_OF_TIMER.get(name)
        if phase is not None:
            self._phases.end_with_inner(phase)
            if phase == TRAINING_ITERATION:
                self.write()

    def _additional_logs(self) -> dict[str, Any]:
        found = getattr(self._process, "additional_logs", None)
        return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}

    def _fresh_logs(self) -> dict[str, Any]:
        """Return what this step added; a new value is a new object, even if it is equal."""
        return {
            name: value
            for name, value in self._additional_logs().items()
            if value is not self._older_logs.get(name) and name != VALIDATION_LOSS
        }

    def _count_for_epoch(self, epoch: int, step: int, loss: Any) -> None:
        """Add a step's loss to its epoch, and write the previous epoch if it is over."""
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
        if self._rate_step is None or step - self._rate_step >= self._log.log_every:
            with self._guard.catch("reading the learning rate"):
                self._rate = learning_rate(self._process)
                self._rate_step = step if is_costly_rate(self._process) else None
        return self._rate


def _combined(norms: Sequence[Any]) -> Any:
    """Return the norm of the whole gradient, whose parts were clipped one by one, without waiting for a device."""
    if len(norms) < 2:
        return norms[0] if norms else None
    return sum(norm * norm for norm in norms) ** 0.5


def _is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error)
