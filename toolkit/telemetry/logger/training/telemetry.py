"""The phases of a training job, as `with` blocks, decorators and callbacks."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol, cast

from toolkit.telemetry.core.clock import Clock, SystemClock
from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.logger.training.callbacks import Callbacks
from toolkit.telemetry.logger.training.job import Job
from toolkit.telemetry.logger.training.job_log import JobLog
from toolkit.telemetry.logger.training.job_state import Evaluations
from toolkit.telemetry.logger.training.phase import FunctionPhase, Phase, SpanPhase
from toolkit.telemetry.timing import names


class _Make(Protocol):
    """How a method that makes a phase is called."""

    def __call__(self, **attributes: Any) -> Phase: ...


class _PhaseMethod(Protocol):
    def __get__(self, instance: TrainingTelemetry, owner: type) -> _Make: ...


_SPANS: Final[list[str]] = []
"""Phases that are a span; iterations are counted too."""


def _phase(name: str, what: str) -> _PhaseMethod:
    """Return the method of a phase that is a span."""
    _SPANS.append(name)

    def phase(self: TrainingTelemetry, **attributes: Any) -> Phase:
        return SpanPhase(self._kinds[name], attributes)

    phase.__doc__ = what
    return cast(_PhaseMethod, phase)


class TrainingTelemetry(Callbacks):
    """The phases of a training job, each as a `with` block, a decorator or a pair of callbacks.

    `with log.training.forward(): …` and `@log.training.forward()` do the same. A block yields its span, which takes
    more attributes. Nothing raises except `configure`, and nothing waits for a GPU.
    """

    dist_init = _phase(names.DIST_INIT, "Distributed initialisation.")
    model_init = _phase(names.MODEL_INIT, "Model creation.")
    dataloader_init = _phase(names.DATALOADER_INIT, "Data loader creation.")
    optimizer_init = _phase(names.OPTIMIZER_INIT, "Optimizer creation.")
    checkpoint_load = _phase(names.CHECKPOINT_LOAD, "Loading a checkpoint.")
    training_iteration = _phase(
        names.TRAINING_ITERATION,
        "One iteration; `batch_size` and `tokens`, given here or set on the span, override the configured batch.",
    )
    data_loading = _phase(names.DATA_LOADING, "Waiting for data.")
    forward = _phase(names.FORWARD, "The forward pass.")
    zero_grad = _phase(names.ZERO_GRAD, "Clearing gradients.")
    backward = _phase(names.BACKWARD, "The backward pass.")
    optimizer_update = _phase(names.OPTIMIZER_UPDATE, "The optimizer step.")
    validation_iteration = _phase(names.VALIDATION_ITERATION, "One iteration of a validation.")
    testing_iteration = _phase(names.TESTING_ITERATION, "One iteration of a test.")

    def __init__(self, log: JobLog, *, clock: Clock | None = None) -> None:
        super().__init__(Job(log, clock or SystemClock()), log.guard)
        self._kinds = {name: self._job.kind(name) for name in _SPANS}
        self._iteration = self._kinds[names.TRAINING_ITERATION]

    def configure(self, **config: Any) -> None:
        """Describe the job, before it begins or at any later time, as often as needed.

        Each value may be a function, called when the value is needed. OneLogger's spelling of the keys, such as
        `global_batch_size_or_fn`, and its `telemetry_config` are accepted too. `TrainingConfig` has all keys; for an
        unsupported key of OneLogger's the error message names the replacement.

        Raises:
            ConfigError: a key or a value is wrong; the message names it and what is allowed.
        """
        self._job.configure(config)

    def on_error(self, error: BaseException) -> None:
        """Record an exception that a framework caught and passes to a callback."""
        self._job.fail_current(error)

    def end_failed(self, span: AnySpan, error: BaseException) -> None:
        """End a span of a step, and record the exception raised inside it."""
        self._iteration.fail(span, error)
        span.__exit__(type(error), error, error.__traceback__)

    def end_iteration(self, span: AnySpan) -> None:
        """End the span of a training iteration, and count it."""
        span.__exit__(None, None, None)
        self._job.count_iteration(span)

    def close(self) -> None:
        """Write the iterations since the last full window; the logger calls this before it closes."""
        self._job.write_remaining()

    # Phases that do more than a span.

    def application(self, *, start_time_msec: float | None = None, **attributes: Any) -> Phase:
        """The whole job, from now on or from an earlier time such as the start of the process."""
        start_time = self._seconds(start_time_msec)
        return FunctionPhase(
            partial(self._job.begin_application, attributes, start_time), self._job.end_application
        )

    def training_loop(
        self,
        train_iterations_start: int = 0,
        train_samples_start: int | None = None,
        train_iterations_target: Any = None,
        train_samples_target: Any = None,
        *,
        train_iterations_target_or_fn: Any = None,
        train_samples_target_or_fn: Any = None,
    ) -> Phase:
        """The training loop, with its first iteration and its targets."""
        begin = partial(
            self._job.begin_training_loop,
            train_iterations_start,
            train_samples_start,
            train_iterations_target if train_iterations_target is not None else train_iterations_target_or_fn,
            train_samples_target if train_samples_target is not None else train_samples_target_or_fn,
        )
        return FunctionPhase(begin, self._job.end_training_loop)

    def validation_loop(self, **attributes: Any) -> Phase:
        """One validation; forward passes in it are not counted as the training's."""
        return self._evaluation(self._job.validation, attributes)

    def testing_loop(self, **attributes: Any) -> Phase:
        """One test of the model."""
        return self._evaluation(self._job.testing, attributes)

    def _evaluation(self, loops: Evaluations, attributes: dict[str, Any]) -> Phase:
        return FunctionPhase(
            partial(self._job.begin_evaluation, loops, attributes), partial(self._job.end_evaluation, loops)
        )

    def sampling(self, **attributes: Any) -> Phase:
        """Sampling."""
        return FunctionPhase(partial(self._job.begin_sampling, attributes), self._job.end_pause)

    def checkpoint_save(self, global_step: int, path: Any = None, strategy: str | None = None) -> Phase:
        """Saving a checkpoint: a `sync` one is saved when the block ends, an `async` one when its success is reported.

        The size of what is at `path` is looked up.
        """
        saving = self._job.saving
        save = saving.save_of(global_step, path, strategy)
        return FunctionPhase(partial(saving.begin, save), partial(saving.end_block, save))

    def checkpoint_finalization(self, global_step: int, path: Any = None) -> Phase:
        """Finalising an `async` checkpoint, on any thread; it is saved when the block ends without an exception."""
        saving = self._job.saving
        return FunctionPhase(
            partial(saving.begin_finalization, global_step),
            partial(saving.end_finalization_block, global_step, path),
        )
