"""OneLogger's callbacks and some it lacks, for frameworks where a `with` block does not fit.

All accept a time, in milliseconds since the epoch, for what happened at another moment than now.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from toolkit.core.guard import Guard
from toolkit.runfolder.untrusted import is_number
from toolkit.telemetry.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.training.checkpoints import CheckpointSave
from toolkit.telemetry.training.job import Job
from toolkit.timing import names

_SAVING = "checkpoint_save"

_End = Callable[[AnySpan, BaseException | None, float | None], None]


class Callbacks:
    """A start and an end for each phase of a job; a phase that starts again while it is open is ended first."""

    def __init__(self, job: Job, guard: Guard) -> None:
        self._job = job
        self._guard = guard
        self._open: dict[str, AnySpan] = {}
        self._save: CheckpointSave | None = None

    # The job and its setup.

    def on_app_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of the job."""
        span = self._job.begin_application(None, self._seconds(start_time_msec))
        if span is not NO_SPAN:
            self._open[names.APPLICATION] = span
        return span

    def on_app_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the job; the logger stays open."""
        self._end(names.APPLICATION, self._job.end_application, finish_time_msec)

    def on_distributed_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of distributed initialisation."""
        return self._start_plain(names.DIST_INIT, start_time_msec)

    def on_distributed_init_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of distributed initialisation."""
        self._end(names.DIST_INIT, self._job.end_plain, finish_time_msec)

    def on_model_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of model creation."""
        return self._start_plain(names.MODEL_INIT, start_time_msec)

    def on_model_init_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of model creation."""
        self._end(names.MODEL_INIT, self._job.end_plain, finish_time_msec)

    def on_dataloader_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of data loader creation."""
        return self._start_plain(names.DATALOADER_INIT, start_time_msec)

    def on_dataloader_init_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of data loader creation."""
        self._end(names.DATALOADER_INIT, self._job.end_plain, finish_time_msec)

    def on_load_checkpoint_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of loading a checkpoint."""
        return self._start_plain(names.CHECKPOINT_LOAD, start_time_msec)

    def on_load_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of loading a checkpoint."""
        self._end(names.CHECKPOINT_LOAD, self._job.end_plain, finish_time_msec)

    def on_optimizer_init_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of optimizer creation."""
        return self._start_plain(names.OPTIMIZER_INIT, start_time_msec)

    def on_optimizer_init_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of optimizer creation."""
        self._end(names.OPTIMIZER_INIT, self._job.end_plain, finish_time_msec)

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
        """Mark the start of the training loop, with its first iteration and its targets."""
        # The job itself ends a loop that is still open.
        self._open.pop(names.TRAINING_LOOP, None)
        return self._keep(
            names.TRAINING_LOOP,
            self._job.begin_training_loop(
                train_iterations_start,
                train_samples_start,
                _either(train_iterations_target, train_iterations_target_or_fn),
                _either(train_samples_target, train_samples_target_or_fn),
                self._seconds(start_time_msec),
            ),
        )

    def on_train_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the training loop."""
        self._end(names.TRAINING_LOOP, self._job.end_training_loop, finish_time_msec)

    def on_training_single_iteration_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of a training iteration."""
        self._end_earlier(names.TRAINING_ITERATION)
        return self._keep(names.TRAINING_ITERATION, self._job.begin_iteration(self._seconds(start_time_msec)))

    def on_training_single_iteration_end(
        self,
        finish_time_msec: float | None = None,
        *,
        loss: Any = None,
        batch_size: int | None = None,
        tokens: int | None = None,
    ) -> None:
        """Mark the end of a training iteration; `batch_size` and `tokens` override the configured batch."""
        self._job.note_loss(loss)
        sizes = self._job.given_sizes(batch_size, tokens)
        span = self._open.get(names.TRAINING_ITERATION)
        if sizes and span is not None:
            span.set_all(sizes)
        self._end(names.TRAINING_ITERATION, self._job.end_iteration, finish_time_msec)

    def on_data_loading_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of waiting for data."""
        return self._start_plain(names.DATA_LOADING, start_time_msec)

    def on_data_loading_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of waiting for data."""
        self._end(names.DATA_LOADING, self._job.end_plain, finish_time_msec)

    def on_forward_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of the forward pass."""
        return self._start_plain(names.FORWARD, start_time_msec)

    def on_forward_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the forward pass."""
        self._end(names.FORWARD, self._job.end_plain, finish_time_msec)

    def on_zero_grad_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of clearing the gradients."""
        return self._start_plain(names.ZERO_GRAD, start_time_msec)

    def on_zero_grad_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of clearing the gradients."""
        self._end(names.ZERO_GRAD, self._job.end_plain, finish_time_msec)

    def on_backward_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of the backward pass."""
        return self._start_plain(names.BACKWARD, start_time_msec)

    def on_backward_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the backward pass."""
        self._end(names.BACKWARD, self._job.end_plain, finish_time_msec)

    def on_optimizer_update_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of the optimizer step."""
        return self._start_plain(names.OPTIMIZER_UPDATE, start_time_msec)

    def on_optimizer_update_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the optimizer step."""
        self._end(names.OPTIMIZER_UPDATE, self._job.end_plain, finish_time_msec)

    # Beside the training.

    def on_validation_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of a validation loop."""
        return self._start(
            names.VALIDATION_LOOP, partial(self._job.begin_evaluation, self._job.validation), start_time_msec
        )

    def on_validation_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the validation loop."""
        self._end(
            names.VALIDATION_LOOP, partial(self._job.end_evaluation, self._job.validation), finish_time_msec
        )

    def on_validation_single_iteration_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of one of its iterations."""
        return self._start_plain(names.VALIDATION_ITERATION, start_time_msec)

    def on_validation_single_iteration_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the iteration."""
        self._end(
            names.VALIDATION_ITERATION,
            partial(self._job.end_evaluation_iteration, self._job.validation),
            finish_time_msec,
        )

    def on_testing_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of a testing loop."""
        return self._start(
            names.TESTING_LOOP, partial(self._job.begin_evaluation, self._job.testing), start_time_msec
        )

    def on_testing_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the testing loop."""
        self._end(names.TESTING_LOOP, partial(self._job.end_evaluation, self._job.testing), finish_time_msec)

    def on_testing_single_iteration_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of one of its iterations."""
        return self._start_plain(names.TESTING_ITERATION, start_time_msec)

    def on_testing_single_iteration_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the iteration."""
        self._end(
            names.TESTING_ITERATION,
            partial(self._job.end_evaluation_iteration, self._job.testing),
            finish_time_msec,
        )

    def on_sampling_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of sampling."""
        return self._start(names.SAMPLING, self._job.begin_sampling, start_time_msec)

    def on_sampling_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of sampling."""
        self._end(names.SAMPLING, self._job.end_pause, finish_time_msec)

    # Checkpoints.

    def on_save_checkpoint_start(
        self,
        global_step: int,
        start_time_msec: float | None = None,
        *,
        path: Any = None,
        strategy: str | None = None,
    ) -> AnySpan:
        """Mark the start of saving a checkpoint of the work done so far."""
        self._end_earlier(_SAVING)
        self._save = self._job.saving.save_of(global_step, path, strategy)
        return self._keep(_SAVING, self._job.saving.begin(self._save, self._seconds(start_time_msec)))

    def on_save_checkpoint_success(
        self, global_step: int, time_msec: float | None = None, *, path: Any = None, size: int | None = None
    ) -> None:
        """Mark the checkpoint of this step as saved, from any thread; the size of `path` is looked up."""
        self._job.saving.succeed(global_step, path, size, self._seconds(time_msec))

    def on_save_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the pause for a checkpoint; an async one need not be complete yet."""
        save = self._save
        if save is None:
            self._report_never_began(_SAVING)
            return
        self._save = None

        def end(span: AnySpan, error: BaseException | None, stop_time: float | None) -> None:
            self._job.saving.end(save, span, error, stop_time)

        self._end(_SAVING, end, finish_time_msec)

    def on_checkpoint_finalization_start(
        self, global_step: int, start_time_msec: float | None = None
    ) -> AnySpan:
        """Mark the start of finalising an async checkpoint, from any thread."""
        name = f"{names.CHECKPOINT_SAVE_FINALIZATION} {global_step}"
        self._end_earlier(name)
        return self._keep(
            name, self._job.saving.begin_finalization(global_step, self._seconds(start_time_msec))
        )

    def on_checkpoint_finalization_end(self, global_step: int, finish_time_msec: float | None = None) -> None:
        """Mark the end of finalising an async checkpoint, from any thread."""
        self._end(
            f"{names.CHECKPOINT_SAVE_FINALIZATION} {global_step}", self._job.end_plain, finish_time_msec
        )

    # Internal.

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
        """End a phase whose end was never reported; it is not counted as completed."""
        span = self._open.pop(name, None)
        if span is not None:
            self._guard.report_misuse(
                f"{_shown(name)} started again before it ended; the earlier one is ended here"
            )
            self._job.abandon(name, span)

    def _end(self, name: str, end: _End, finish_time_msec: float | None) -> None:
        span = self._open.pop(name, None)
        if span is None:
            self._report_never_began(name)
        else:
            end(span, None, self._seconds(finish_time_msec))

    def _report_never_began(self, name: str) -> None:
        if self._job.is_live:
            self._guard.report_misuse(f"{_shown(name)} ended but never started")

    def _seconds(self, msec: float | None) -> float | None:
        if msec is None:
            return None
        if not is_number(msec) or not 0 <= msec < 1e15:
            self._guard.report_misuse(
                "a time must be in milliseconds since the epoch; the current time is used"
            )
            return None
        return msec / 1000.0


def _either(ours: Any, theirs: Any) -> Any:
    return ours if ours is not None else theirs


def _shown(name: str) -> str:
    return name.partition(" ")[0]
