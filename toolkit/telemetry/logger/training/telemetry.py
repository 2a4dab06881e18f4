"""The phases of a training job, as `with` blocks, decorators and callbacks.

The callbacks are OneLogger's and some it lacks, for frameworks where a `with` block does not fit. All accept a time, in
milliseconds since the epoch, for what happened at another time than now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.logger.training.checkpoints import CheckpointFinalization, Checkpoints
from toolkit.telemetry.logger.training.job import Job, JobLog
from toolkit.telemetry.logger.training.phases import (
    Application,
    Evaluation,
    Iteration,
    Phase,
    TrainingLoop,
)
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.timing import names

_SAVING: Final = "checkpoint_save"

_Block = Callable[..., Phase]
_Start = Callable[..., AnySpan]
_End = Callable[..., None]


def _phase(name: str, what: str, kind: type[Phase] = Phase) -> tuple[_Block, _Start, _End]:
    """Return the block of a phase and its two callbacks, which take a time in milliseconds."""

    def block(self: TrainingTelemetry, **attributes: Any) -> Phase:
        return kind(self._job, name, attributes)

    def on_start(self: TrainingTelemetry, start_time_msec: float | None = None) -> AnySpan:
        return self._begin(name, kind(self._job, name), start_time_msec)

    def on_end(self: TrainingTelemetry, finish_time_msec: float | None = None) -> None:
        self._end(name, finish_time_msec)

    block.__doc__ = f"{what}."
    on_start.__doc__, on_end.__doc__ = f"Mark the start: {what}.", f"Mark the end: {what}."
    return block, on_start, on_end


class TrainingTelemetry:
    """The phases of a training job, each as a `with` block, a decorator or a pair of callbacks.

    `with log.training.forward(): …` and `@log.training.forward()` do the same. A block yields its span, which takes
    more attributes. A phase that starts again by a callback while it is open is ended first. Nothing raises except
    `configure`, or misuse with `strict`, and nothing waits for a GPU.
    """

    on_app_start, on_app_end = _phase(names.APPLICATION, "the job; the logger stays open", Application)[1:]
    dist_init, on_distributed_init_start, on_distributed_init_end = _phase(
        names.DIST_INIT, "distributed initialisation"
    )
    model_init, on_model_init_start, on_model_init_end = _phase(names.MODEL_INIT, "model creation")
    dataloader_init, on_dataloader_init_start, on_dataloader_init_end = _phase(
        names.DATALOADER_INIT, "data loader creation"
    )
    optimizer_init, on_optimizer_init_start, on_optimizer_init_end = _phase(
        names.OPTIMIZER_INIT, "optimizer creation"
    )
    checkpoint_load, on_load_checkpoint_start, on_load_checkpoint_end = _phase(
        names.CHECKPOINT_LOAD, "loading a checkpoint"
    )
    on_train_end = _phase(names.TRAINING_LOOP, "the training loop")[2]
    training_iteration, on_training_single_iteration_start, on_training_single_iteration_end = _phase(
        names.TRAINING_ITERATION,
        "one iteration; `batch_size` and `tokens`, given here or set on the span, override the configured batch",
        Iteration,
    )
    data_loading, on_data_loading_start, on_data_loading_end = _phase(names.DATA_LOADING, "waiting for data")
    forward, on_forward_start, on_forward_end = _phase(names.FORWARD, "the forward pass")
    zero_grad, on_zero_grad_start, on_zero_grad_end = _phase(names.ZERO_GRAD, "clearing the gradients")
    backward, on_backward_start, on_backward_end = _phase(names.BACKWARD, "the backward pass")
    optimizer_update, on_optimizer_update_start, on_optimizer_update_end = _phase(
        names.OPTIMIZER_UPDATE, "the optimizer step"
    )
    validation_loop, on_validation_start, on_validation_end = _phase(
        names.VALIDATION_LOOP,
        "one validation",
        Evaluation,
    )
    validation_iteration, on_validation_single_iteration_start, on_validation_single_iteration_end = _phase(
        names.VALIDATION_ITERATION, "one iteration of a validation", Iteration
    )
    testing_loop, on_testing_start, on_testing_end = _phase(
        names.TESTING_LOOP, "one test of the model", Evaluation
    )
    testing_iteration, on_testing_single_iteration_start, on_testing_single_iteration_end = _phase(
        names.TESTING_ITERATION, "one iteration of a test", Iteration
    )
    sampling, on_sampling_start, on_sampling_end = _phase(names.SAMPLING, "sampling")

    def __init__(self, log: JobLog, clock: Clock) -> None:
        self._job = Job(log, clock)
        self.end_iteration = self._job.end_iteration
        self.write_remaining = self._job.write_remaining
        self._guard = log.guard
        self._checkpoints = Checkpoints(self._job)
        self._open: dict[str, Phase] = {}
        """The phases that a callback began."""

    def configure(self, **config: Any) -> None:
        """Describe the job, before it begins or at any later time, as often as needed.

        Each value may be a function, called when the value is needed. OneLogger's spelling of the keys, such as
        `global_batch_size_or_fn`, and its `telemetry_config` are accepted too. `TrainingConfig` has all keys.

        Raises:
            ConfigError: a key or a value is wrong; the message names it and what is allowed.
        """
        self._job.configure(config)

    def on_error(self, error: BaseException) -> None:
        """Record an exception that a framework caught and passes to a callback."""
        span = self._job.log.current_span()
        self._job.write_error(span, error)
        if span is not None:
            span.fail(error)

    def end_failed(self, span: AnySpan, error: BaseException) -> None:
        """End a span of a step, and record the exception raised inside it."""
        self._job.write_error(span, error)
        span.__exit__(type(error), error, error.__traceback__)

    # What takes more than attributes.

    def application(self, *, start_time_msec: float | None = None, **attributes: Any) -> Phase:
        """The whole job, from now on or from an earlier time such as the start of the process."""
        return Application(self._job, names.APPLICATION, attributes, self._seconds(start_time_msec))

    def training_loop(
        self, train_iterations_start: int = 0, train_samples_start: int | None = None, **targets: Any
    ) -> Phase:
        """The training loop from its first iteration on.

        `train_iterations_target` and `train_samples_target`, numbers or functions, replace the configuration's.
        """
        return TrainingLoop(
            self._job, names.TRAINING_LOOP, train_iterations_start, train_samples_start, targets
        )

    def on_train_start(
        self,
        train_iterations_start: int = 0,
        train_samples_start: int | None = None,
        train_iterations_target_or_fn: Any = None,
        train_samples_target_or_fn: Any = None,
        start_time_msec: float | None = None,
        **targets: Any,
    ) -> AnySpan:
        """Mark the start of the training loop, with its first iteration and its targets."""
        targets["train_iterations_target_or_fn"] = train_iterations_target_or_fn
        targets["train_samples_target_or_fn"] = train_samples_target_or_fn
        loop = self.training_loop(train_iterations_start, train_samples_start, **targets)
        return self._begin(names.TRAINING_LOOP, loop, start_time_msec)

    def checkpoint_save(self, global_step: int, path: Any = None, strategy: str | None = None) -> Phase:
        """Saving a checkpoint: a `sync` one is saved when the block ends, an `async` one when its success is reported.

        The size of what is at `path` is looked up.
        """
        return self._checkpoints.save_of(global_step, path, strategy)

    def on_save_checkpoint_start(
        self,
        global_step: int,
        start_time_msec: float | None = None,
        *,
        path: Any = None,
        strategy: str | None = None,
    ) -> AnySpan:
        """Mark the start of saving a checkpoint of the work done so far."""
        return self._begin(_SAVING, self.checkpoint_save(global_step, path, strategy), start_time_msec)

    def on_save_checkpoint_success(
        self, global_step: int, time_msec: float | None = None, *, path: Any = None, size: int | None = None
    ) -> None:
        """Mark the checkpoint of this step as saved, from any thread; the size of `path` is looked up."""
        self._checkpoints.succeed(global_step, path, size, self._seconds(time_msec))

    def on_save_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Mark the end of the pause for a checkpoint; an async one need not be complete yet."""
        self._end(_SAVING, finish_time_msec)

    def checkpoint_finalization(self, global_step: int, path: Any = None) -> Phase:
        """Finalising an `async` checkpoint, on any thread; it is saved when the block ends without an exception."""
        return CheckpointFinalization(self._checkpoints, global_step, path)

    # Internal.

    def _begin(self, key: str, phase: Phase, start_time_msec: float | None) -> AnySpan:
        """Begin a phase, and end one whose end was never reported."""
        earlier = self._open.pop(key, None)
        if earlier is not None:
            self._guard.report_misuse(f"{key} started again before it ended; the earlier one is ended here")
            earlier.end("its end was never reported")
        span = phase.begin(self._seconds(start_time_msec))
        self._open[key] = phase
        return span

    def _end(self, key: str, finish_time_msec: float | None) -> None:
        phase = self._open.pop(key, None)
        if phase is not None:
            phase.end(None, self._seconds(finish_time_msec))
        elif self._job.log.is_live:
            self._guard.report_misuse(f"{key} ended but never started")

    def _seconds(self, msec: float | None) -> float | None:
        if msec is None:
            return None
        if not is_number(msec) or not 0 <= msec < 1e15:
            self._guard.report_misuse(
                "a time must be in milliseconds since the epoch; the current time is used"
            )
            return None
        return msec / 1000.0
