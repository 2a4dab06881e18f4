"""OneLogger's callbacks, and those that it lacks: for frameworks where a `with` block cannot be put around things.

All take the time, in milliseconds since the epoch, where what they tell of happened at another moment than now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.core.guard import Guard
from toolkit.telemetry.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.training.checkpoints import Save
from toolkit.telemetry.training.job import Job
from toolkit.timing.names import (
    APPLICATION,
    BACKWARD,
    CHECKPOINT_LOAD,
    CHECKPOINT_SAVE_FINALIZATION,
    DATA_LOADING,
    DATALOADER_INIT,
    DIST_INIT,
    FORWARD,
    MODEL_INIT,
    OPTIMIZER_INIT,
    OPTIMIZER_UPDATE,
    SAMPLING,
    TESTING_ITERATION,
    TESTING_LOOP,
    TRAINING_ITERATION,
    TRAINING_LOOP,
    VALIDATION_ITERATION,
    VALIDATION_LOOP,
    ZERO_GRAD,
)

_SAVING = "checkpoint_save"

_End = Callable[[AnySpan, BaseException | None, float | None], None]


class Callbacks:
    """A start and an end for each part of a job; a part that begins again before it has ended is ended first."""

    def __init__(self, job: Job, guard: Guard) -> None:
        self._job = job
        self._guard = guard
        self._open: dict[str, AnySpan] = {}
        self._save: Save | None = None

    # The job and what comes before its training.

    def on_app_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the job begins."""
        span = self._job.begin_application(None, self._seconds(start_time_msec))
        if span is not NO_SPAN:
            self._open[APPLICATION] = span
        return span

    def on_app_end(self, finish_time_msec: float | None = None) -> None:
        """Say that the job ends; the logger stays open."""
        self._end(APPLICATION, self._job.end_application, finish_time_msec)

    def on_distributed_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the processes begin to find each other."""
        return self._start_plain(DIST_INIT, start_time_msec)

    def on_distributed_init_end(self, finish_time_msec: float | None = None) -> None:
        """Say that they have."""
        self._end(DIST_INIT, self._job.end_plain, finish_time_msec)

    def on_model_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the model is being made."""
        return self._start_plain(MODEL_INIT, start_time_msec)

    def on_model_init_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it is there."""
        self._end(MODEL_INIT, self._job.end_plain, finish_time_msec)

    def on_dataloader_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the data loader is being made."""
        return self._start_plain(DATALOADER_INIT, start_time_msec)

    def on_dataloader_init_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it is there."""
        self._end(DATALOADER_INIT, self._job.end_plain, finish_time_msec)

    def on_load_checkpoint_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that a checkpoint is being loaded."""
        return self._start_plain(CHECKPOINT_LOAD, start_time_msec)

    def on_load_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it is loaded."""
        self._end(CHECKPOINT_LOAD, self._job.end_plain, finish_time_msec)

    def on_optimizer_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the optimizer is being made."""
        return self._start_plain(OPTIMIZER_INIT, start_time_msec)

    def on_optimizer_init_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it is there."""
        self._end(OPTIMIZER_INIT, self._job.end_plain, finish_time_msec)

    # Training.

    def on_train_start(
        self,
        train_iterations_start: int = 0,
        train_samples_start: int | None = None,
        train_iterations_target_or_fn: Any = None,
        train_samples_target_or_fn: Any = None,
        start_time_msec: float | None = None,
        *,
        train_iterations_target: Any = None,
        train_samples_target: Any = None,
    ) -> AnySpan:
        """Say that the training loop begins, at which iteration, and how far it is meant to go."""
        # The job itself ends a loop that is still open.
        self._open.pop(TRAINING_LOOP, None)
        return self._keep(
            TRAINING_LOOP,
            self._job.begin_training_loop(
                train_iterations_start,
                train_samples_start,
                _either(train_iterations_target, train_iterations_target_or_fn),
                _either(train_samples_target, train_samples_target_or_fn),
                self._seconds(start_time_msec),
            ),
        )

    def on_train_end(self, finish_time_msec: float | None = None) -> None:
        """Say that the training loop ends."""
        self._end(TRAINING_LOOP, self._job.end_training_loop, finish_time_msec)

    def on_training_single_iteration_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that a training iteration begins."""
        self._end_earlier(TRAINING_ITERATION)
        return self._keep(TRAINING_ITERATION, self._job.begin_iteration(self._seconds(start_time_msec)))

    def on_training_single_iteration_end(
        self,
        finish_time_msec: float | None = None,
        *,
        loss: Any = None,
        batch_size: int | None = None,
        tokens: int | None = None,
    ) -> None:
        """Say that it ends, and what it trained on where that is not the configuration's batch."""
        self._job.note_loss(loss)
        said = self._job.sizes_said(batch_size, tokens)
        span = self._open.get(TRAINING_ITERATION)
        if said and span is not None:
            span.set_all(said)
        self._end(TRAINING_ITERATION, self._job.end_iteration, finish_time_msec)

    def on_data_loading_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the training waits for data."""
        return self._start_plain(DATA_LOADING, start_time_msec)

    def on_data_loading_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it has them."""
        self._end(DATA_LOADING, self._job.end_plain, finish_time_msec)

    def on_forward_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the forward pass begins."""
        return self._start_plain(FORWARD, start_time_msec)

    def on_forward_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(FORWARD, self._job.end_plain, finish_time_msec)

    def on_zero_grad_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that gradients are being cleared."""
        return self._start_plain(ZERO_GRAD, start_time_msec)

    def on_zero_grad_end(self, finish_time_msec: float | None = None) -> None:
        """Say that they are."""
        self._end(ZERO_GRAD, self._job.end_plain, finish_time_msec)

    def on_backward_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the backward pass begins."""
        return self._start_plain(BACKWARD, start_time_msec)

    def on_backward_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(BACKWARD, self._job.end_plain, finish_time_msec)

    def on_optimizer_update_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that the optimizer begins its step."""
        return self._start_plain(OPTIMIZER_UPDATE, start_time_msec)

    def on_optimizer_update_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(OPTIMIZER_UPDATE, self._job.end_plain, finish_time_msec)

    # Beside the training.

    def on_validation_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that a validation loop begins."""
        return self._start(VALIDATION_LOOP, self._job.begin_validation, start_time_msec)

    def on_validation_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(VALIDATION_LOOP, self._job.end_validation, finish_time_msec)

    def on_validation_single_iteration_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that one of its iterations begins."""
        return self._start_plain(VALIDATION_ITERATION, start_time_msec)

    def on_validation_single_iteration_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(VALIDATION_ITERATION, self._job.end_validation_iteration, finish_time_msec)

    def on_testing_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that a testing loop begins."""
        return self._start(TESTING_LOOP, self._job.begin_testing, start_time_msec)

    def on_testing_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(TESTING_LOOP, self._job.end_testing, finish_time_msec)

    def on_testing_single_iteration_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that one of its iterations begins."""
        return self._start_plain(TESTING_ITERATION, start_time_msec)

    def on_testing_single_iteration_end(self, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(TESTING_ITERATION, self._job.end_testing_iteration, finish_time_msec)

    def on_sampling_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Say that samples are being made."""
        return self._start(SAMPLING, self._job.begin_sampling, start_time_msec)

    def on_sampling_end(self, finish_time_msec: float | None = None) -> None:
        """Say that they are."""
        self._end(SAMPLING, self._job.end_beside, finish_time_msec)

    # Checkpoints.

    def on_save_checkpoint_start(
        self,
        global_step: int,
        start_time_msec: float | None = None,
        *,
        path: Any = None,
        strategy: str | None = None,
    ) -> AnySpan:
        """Say that a checkpoint is being saved, of what has been trained up to here."""
        self._end_earlier(_SAVING)
        self._save = self._job.saving.save_of(global_step, path, strategy)
        return self._keep(_SAVING, self._job.saving.begin(self._save, self._seconds(start_time_msec)))

    def on_save_checkpoint_success(
        self,
        global_step: int,
        time_msec: float | None = None,
        *,
        path: Any = None,
        size: int | None = None,
    ) -> None:
        """Say, from any thread, that the checkpoint of this step is safe; the size of `path` is looked up."""
        self._job.saving.succeed(global_step, path, size, self._seconds(time_msec))

    def on_save_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Say that the training goes on; one that is saved elsewhere need not be safe yet."""
        save = self._save
        if save is None:
            self._say_never_began(_SAVING)
            return
        self._save = None

        def end(span: AnySpan, error: BaseException | None, stop_time: float | None) -> None:
            self._job.saving.end(save, span, error, stop_time)

        self._end(_SAVING, end, finish_time_msec)

    def on_checkpoint_finalization_start(
        self, global_step: int, start_time_msec: float | None = None
    ) -> AnySpan:
        """Say, from any thread, that the last part of a checkpoint that is saved elsewhere begins."""
        name = f"{CHECKPOINT_SAVE_FINALIZATION} {global_step}"
        self._end_earlier(name)
        return self._keep(
            name, self._job.saving.begin_finalization(global_step, self._seconds(start_time_msec))
        )

    def on_checkpoint_finalization_end(self, global_step: int, finish_time_msec: float | None = None) -> None:
        """Say that it ends."""
        self._end(f"{CHECKPOINT_SAVE_FINALIZATION} {global_step}", self._job.end_plain, finish_time_msec)

    # Within.

    def _start_plain(self, name: str, start_time_msec: float | None) -> AnySpan:
        self._end_earlier(name)
        return self._keep(name, self._job.begin_plain(name, self._seconds(start_time_msec)))

    def _start(
        self, name: str, begin: Callable[[None, float | None], AnySpan], start_time_msec: float | None
    ) -> AnySpan:
        self._end_earlier(name)
        return self._keep(name, begin(None, self._seconds(start_time_msec)))

    def _keep(self, name: str, span: AnySpan) -> AnySpan:
        self._open[name] = span
        return span

    def _end_earlier(self, name: str) -> None:
        """End a part whose end nobody told of; it is not counted as one that was done."""
        span = self._open.pop(name, None)
        if span is not None:
            self._guard.report_misuse(
                f"{_shown(name)} began again before it had ended; the earlier one is ended here"
            )
            self._job.abandon(name, span)

    def _end(self, name: str, end: _End, finish_time_msec: float | None) -> None:
        span = self._open.pop(name, None)
        if span is None:
            self._say_never_began(name)
        else:
            end(span, None, self._seconds(finish_time_msec))

    def _say_never_began(self, name: str) -> None:
        if self._job.is_live:
            self._guard.report_misuse(f"{_shown(name)} ended and had never begun")

    def _seconds(self, msec: float | None) -> float | None:
        if msec is None:
            return None
        if isinstance(msec, bool) or not isinstance(msec, (int, float)) or not 0 <= msec < 1e15:
            self._guard.report_misuse(
                "a time was given that is no number of milliseconds since the epoch; it is now"
            )
            return None
        return msec / 1000.0


def _either(ours: Any, theirs: Any) -> Any:
    return ours if ours is not None else theirs


def _shown(name: str) -> str:
    return name.partition(" ")[0]
