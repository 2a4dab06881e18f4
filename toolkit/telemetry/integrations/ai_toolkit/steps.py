"""The steps of an ai-toolkit trainer: losses, gradient norm, learning rate, and the phases of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.integrations.ai_toolkit.outputs import VALIDATION_LOSS
from toolkit.telemetry.integrations.ai_toolkit.start_fields import learning_rate
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
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

    def __init__(self, process: Any, run: FrameworkRun, patches: MethodPatches) -> None:
        self._process, self._run, self._log = process, run, run.opened
        self._step = 0
        self._losses: Any = None
        self._norms: list[Any] = []
        self._samples = self._most_samples = 0
        self._older_logs: dict[str, Any] = {}
        """What earlier steps left in ai-toolkit's `additional_logs`, which it clears only when it logs."""
        self._rate: Any = None
        self._rate_step: int | None = None
        self._epoch: int | None = None
        patches.follow(process, "hook_train_loop", self._follow_step)
        patches.follow(getattr(process, "accelerator", None), "clip_grad_norm_", self._keep_norm)
        timer = getattr(process, "timer", None)
        patches.follow(timer, "start", self._begin_timer)
        for name in ("stop", "cancel"):
            patches.follow(timer, name, self._end_timer)

    def write(self) -> None:
        """Write the step that has ended, unless that was done."""
        losses, self._losses = self._losses, None
        if losses is None:
            return
        process, step = self._process, self._step
        loss, others = _split_losses(losses)
        epoch, before, self._epoch = process.epoch_num, self._epoch, process.epoch_num
        if before is not None and epoch > before:
            self._log.log_epoch(epoch, global_step=step - 1)
        norm = None
        with self._run.guard.catch("combining the gradient norms"):
            norm = _combined(self._norms)
        # A name in the trainer's own log must not replace a field of ours.
        fields = {
            **self._fresh_logs(),
            **others,
            "global_step": step,
            "train_loss": loss,
            "lr": self._learning_rate(step),
            "grad_norm": norm,
            "epoch": epoch,
        }
        # The last batch of a bucket is often a short one.
        self._most_samples = max(self._samples, self._most_samples)
        if self._samples < self._most_samples:
            internals(self._log).count_samples(self._samples / self._most_samples)
        self._log.log_step(**fields)

    def _follow_step(self, batch_list: Any = (), *_: Any, **__: Any) -> Following:
        self._norms.clear()
        self._step, self._samples = self._process.step_num, 0
        for batch in batch_list if isinstance(batch_list, (list, tuple)) else (batch_list,):
            items = getattr(batch, "file_items", None) or ()
            self._samples += len(items)
            if items and all(isinstance(getattr(item, "path", None), str) for item in items):
                self._log.batch(["/".join(Path(item.path).parts[-2:]) for item in items], step=self._step)
        self._older_logs = self._additional_logs()
        try:
            self._losses = yield
        except BaseException as error:
            if type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in str(error):
                earlier = getattr(self._process, "num_consecutive_oom", 0)
                about = {"message": str(error)[:500], "consecutive": earlier + 1}
                self._log.log_event("oom", global_step=self._step, **about)
            raise

    def _keep_norm(self, *_: Any, **__: Any) -> Following:
        norm = yield
        if norm is not None:
            self._norms.append(norm)

    def _begin_timer(self, name: Any = None, *_: Any, **__: Any) -> None:
        if name in _PHASE_OF_TIMER:
            self._run.begin_phase(_PHASE_OF_TIMER[name])

    def _end_timer(self, name: Any = None, *_: Any, **__: Any) -> Following:
        yield
        phase = _PHASE_OF_TIMER.get(name, "")
        if self._run.has_phase(phase):
            self._run.end_phases_inside(phase)
            self._run.end_phases(phase)
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

    def _learning_rate(self, step: int) -> Any:
        if self._rate_step is None or step - self._rate_step >= self._log.log_every:
            with self._run.guard.catch("reading the learning rate"):
                self._rate, is_slow = learning_rate(self._process)
                self._rate_step = step if is_slow else None
        return self._rate


def _combined(norms: Sequence[Any]) -> Any:
    """Return the norm of the whole gradient, whose parts were clipped one by one, without waiting for a device."""
    if len(norms) < 2:
        return norms[0] if norms else None
    return sum(norm * norm for norm in norms) ** 0.5


def _split_losses(losses: Any) -> tuple[Any, dict[str, Any]]:
    """Return the training loss, `loss` or else the first, and the others as ai-toolkit logs them."""
    if not isinstance(losses, Mapping):
        return losses, {}
    others = {f"loss/{name}": value for name, value in losses.items() if name != "loss"}
    return losses.get("loss", next(iter(losses.values()), None)), others
