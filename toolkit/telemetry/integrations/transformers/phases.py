"""What public hooks do not report of a Trainer, with `phases=True`: methods of one trainer are patched."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from transformers import Trainer, TrainerCallback

from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.integrations.metric_names import as_number
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.records.batch_values import content_row
from toolkit.telemetry.runfolder.evidence.batches import BatchRow

_LOOP: Final = ("_evaluate", "_run_epoch", "_finalize_training")
"""What the training loop consists of: an exception that ends the training leaves one of them."""
_PROFILED: Final = (
    *("training_step", "compute_loss", "prediction_step", "_prepare_inputs", "_save_checkpoint"),
    "_generate_and_score_completions",
)
"""Methods of a trainer whose calls are timed one by one."""


class TrainerPhases:
    """Patches methods of a trainer and of its accelerator, until `stop`; `fail` gets what ends the training."""

    def __init__(self, trainer: Any, log: TelemetryLogger, fail: Callable[[BaseException], None]) -> None:
        self.save_began: float | None = None
        """When the checkpoint began that is being saved."""
        self.scaler = getattr(trainer.accelerator, "scaler", None)
        self._trainer, self._log, self._fail = trainer, log, fail
        self._losses: list[Any] = []
        """Of the current step's micro-batches, divided for the accumulation, before `logging_nan_inf_filter`."""
        self._norms: list[Any] = []
        self._loaders = internals(log).loader_batches(self._keep_batch) if log.is_live else None
        self._patches = patches = MethodPatches(log.guard)
        for name in _LOOP:
            patches.follow(trainer, name, self._report_failure)
        if not log.is_live:
            return
        # First, so that they do not time the patches below.
        for name in _PROFILED:
            patches.wrap(trainer, name, partial(log.profile, name=f"{type(trainer).__name__}.{name}"))
        for owner, name, phase in (
            (trainer, "get_batch_samples", log.training.data_loading),
            (trainer, "compute_loss", log.training.forward),
            (trainer.accelerator, "backward", log.training.backward),
            (trainer, "prediction_step", log.training.validation_iteration),
            (trainer, "evaluation_loop", log.training.validation_loop),
        ):
            patches.time(owner, name, phase)
        patches.follow(trainer, "training_step", partial(_keep_result, self._losses))
        # The first is of newer versions, which do not call the other for every kind of training.
        norms = (trainer, "_get_grad_norm"), (trainer.accelerator, "clip_grad_norm_")
        owner, name = next(one for one in norms if hasattr(*one))
        patches.follow(owner, name, partial(_keep_result, self._norms))
        patches.follow(trainer, "get_batch_samples", self._follow_batches)
        patches.follow(trainer, "_save_checkpoint", self._begin_save)

    def begin_step(self) -> None:
        """Forget the values of the previous step."""
        self._losses.clear()
        self._norms.clear()

    def end_step(self) -> dict[str, Any]:
        """Return the loss and the gradient norm of the step that ended."""
        losses, norm = self._losses, self._norms[-1] if self._norms else None
        loss = losses[0] if len(losses) == 1 else sum(losses) if losses else None
        # A norm spread over ranks would need all of them; the Trainer logs it as a number.
        norm = None if hasattr(norm, "placements") else as_number(norm)
        return {"train_loss": as_number(loss), "grad_norm": norm}

    def stop(self) -> None:
        """Restore the trainer's methods."""
        if self._loaders is not None:
            self._loaders.stop()
        self._patches.undo()

    def _report_failure(self, *_: Any, **__: Any) -> Following:
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _begin_save(self, *_: Any, **__: Any) -> None:
        self.save_began = time.time()

    def _keep_batch(self, row: BatchRow | None) -> None:
        internals(self._log).keep_batch(row, self._trainer.state.global_step + 1)

    def _follow_batches(self, batches: Any, *_: Any, **__: Any) -> Following:
        """Follow the loader of an iteration before it begins; that of a resumed epoch is made only just before."""
        loaders = self._loaders
        if loaders is None:
            return
        before = loaders.taken
        is_new = inspect.isgenerator(batches) and inspect.getgeneratorstate(batches) == inspect.GEN_CREATED
        if is_new and batches.gi_frame is not None:
            loaders.follow(batches.gi_frame.f_locals.get("self"))
        found = yield
        if loaders.taken == before:
            # A loader of another kind.
            for batch in found[0]:
                self._keep_batch(content_row(batch))


def _keep_result(results: list[Any], *_: Any, **__: Any) -> Following:
    results.append((yield))


def calling_trainer(callback: TrainerCallback) -> Any:
    """Return the trainer that is calling a hook of `callback`; None if unknown.

    The Trainer passes everything but itself to its callbacks, so it is looked up in the frames above.
    """
    frame = inspect.currentframe()
    while frame is not None:
        # `f_locals` copies the variables and keeps them alive: read it only if needed.
        found = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found
        frame = frame.f_back
    return None
