"""OneLogger's callbacks and some it lacks, for frameworks where a `with` block does not fit.

All accept a time, in milliseconds since the epoch, for what happened at another time than now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.spans.span import NO_SPAN, AnySpan
from toolkit.telemetry.logger.training.checkpoints import CheckpointSave
from toolkit.telemetry.logger.training.job import Job
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.timing import names

_SAVING = "checkpoint_save"

_End = Callable[[AnySpan, BaseException | None, float | None], None]


class _Start(Protocol):
    """How a callback of a start is called."""

    def __call__(self, start_time_msec: float | None = None) -> AnySpan: ...


class _Finish(Protocol):
    """How a callback of an end is called."""

    def __call__(self, finish_time_msec: float | None = None) -> None: ...


class _StartMethod(Protocol):
    def __get__(self, instance: Callbacks, owner: type) -> _Start: ...


class _FinishMethod(Protocol):
    def __get__(self, instance: Callbacks, owner: type) -> _Finish: ...


def _pair(
    name: str,
    what: str,
    begin: Callable[[Job, float | None], AnySpan] | None = None,
    end: Callable[[Job, AnySpan, float | None], None] = lambda job, span, at: job.end_plain(span, None, at),
) -> tuple[_StartMethod, _FinishMethod]:
    """Return the two callbacks of a phase."""

    def on_start(self: Callbacks, start_time_msec: float | None = None) -> AnySpan:
        self._end_earlier(name)
        at = self._seconds(start_time_msec)
        return self._keep(name, self._job.begin_plain(name, at) if begin is None else begin(self._job, at))

    def on_end(self: Callbacks, finish_time_msec: float | None = None) -> None:
        self._end(name, lambda span, _, at: end(self._job, span, at), finish_time_msec)

    on_start.__doc__, on_end.__doc__ = f"Mark the start of {what}.", f"Mark the end of {what}."
    return cast(_StartMethod, on_start), cast(_FinishMethod, on_end)


class Callbacks:
    """A start and an end for each phase of a job; a phase that starts again while it is open is ended first."""

    def __init__(self, job: Job, guard: Guard) -> None:
        self._job = job
        self._guard = guard
        self._open: dict[str, AnySpan] = {}
        self._save: CheckpointSave | None = None

    on_distributed_init_start, on_distributed_init_end = _pair(names.DIST_INIT, "distributed initialisation")
    on_model_init_start, on_model_init_end = _pair(names.MODEL_INIT, "model creation")
    on_dataloader_init_start, on_dataloader_init_end = _pair(names.DATALOADER_INIT, "data loader creation")
    on_load_checkpoint_start, on_load_checkpoint_end = _pair(names.CHECKPOINT_LOAD, "loading a checkpoint")
    on_optimizer_init_start, on_optimizer_init_end = _pair(names.OPTIMIZER_INIT, "optimizer creation")
    on_data_loading_start, on_data_loading_end = _pair(names.DATA_LOADING, "waiting for data")
    on_forward_start, on_forward_end = _pair(names.FORWARD, "the forward pass")
    on_zero_grad_start, on_zero_grad_end = _pair(names.ZERO_GRAD, "clearing the gradients")
    on_backward_start, on_backward_end = _pair(names.BACKWARD, "the backward pass")
    on_optimizer_update_start, on_optimizer_update_end = _pair(names.OPTIMIZER_UPDATE, "the optimizer step")
    on_validation_start, on_validation_end = _pair(
        names.VALIDATION_LOOP,
        "a validation loop",
        lambda job, at: job.begin_evaluation(job.validation, None, at),
        lambda job, span, at: job.end_evaluation(job.validation, span, None, at),
    )
    on_validation_single_iteration_start, on_validation_single_iteration_end = _pair(
        names.VALIDATION_ITERATION,
        "an iteration of a validation loop",
        end=lambda job, span, at: job.end_evaluation_iteration(job.validation, span, None, at),
    )
    on_testing_start, on_testing_end = _pair(
        names.TESTING_LOOP,
        "a testing loop",
        lambda job, at: job.begin_evaluation(job.testing, None, at),
        lambda job, span, at: job.end_evaluation(job.testing, span, None, at),
    )
    on_testing_single_iteration_start, on_testing_single_iteration_end = _pair(
        names.TESTING_ITERATION,
        "an iteration of a testing loop",
        end=lambda job, span, at: job.end_evaluation_iteration(job.testing, span, None, at),
    )
    on_sampling_start, on_sampling_end = _pair(
        names.SAMPLING,
        "sampling",
        lambda job, at: job.begin_sampling(None, at),
        lambda job, span, at: job.end_pause(span, None, at),
    )

    def on_app_start(self, start_time_msec: float | None = None) -> AnySpan:
        """Mark the start of the job."""
        span = self._job.begin_application(None, self._seconds(start_time_msec))
        if span is not NO_SPAN:
            self._open[names.APPLICATION] = span
        return span

    def on_app_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the job; the logger stays open."""
        self._end(names.APPLICATION, self._job.end_application, finish_time_msec)

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
