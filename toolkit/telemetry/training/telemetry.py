"""The vocabulary of a training job: what to put around each of its parts."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from toolkit.core.clock import Clock, SystemClock
from toolkit.telemetry.training.callbacks import Callbacks
from toolkit.telemetry.training.job import Job
from toolkit.telemetry.training.job_log import JobLog
from toolkit.telemetry.training.part import Block, Part, SpanBlock
from toolkit.timing.names import (
    BACKWARD,
    CHECKPOINT_LOAD,
    DATA_LOADING,
    DATALOADER_INIT,
    DIST_INIT,
    FORWARD,
    MODEL_INIT,
    OPTIMIZER_INIT,
    OPTIMIZER_UPDATE,
    TESTING_ITERATION,
    TRAINING_ITERATION,
    VALIDATION_ITERATION,
    ZERO_GRAD,
)

_SPANS: Final = (
    *(DIST_INIT, MODEL_INIT, DATALOADER_INIT, OPTIMIZER_INIT, CHECKPOINT_LOAD),
    *(TRAINING_ITERATION, DATA_LOADING, FORWARD, ZERO_GRAD, BACKWARD, OPTIMIZER_UPDATE),
    *(VALIDATION_ITERATION, TESTING_ITERATION),
)
"""Parts that are a span, or are counted by it."""


class TrainingTelemetry(Callbacks):
    """The parts of a training job, each as a `with` block, a decorator or a pair of callbacks.

    `with log.training.forward(): …` and `@log.training.forward()` do the same. A block gives its span, on which more
    can be said. Nothing raises but `configure`, and nothing waits for a GPU.
    """

    def __init__(
        self,
        log: JobLog,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(Job(log, clock or SystemClock()), log.guard)
        self._kinds = {name: self._job.kind(name) for name in _SPANS}
        self._iteration = self._kinds[TRAINING_ITERATION]

    def configure(self, **config: Any) -> None:
        """Say what is known of the job, before it begins or at any time later, as often as there is news.

        Each value may be a function, which is asked when its value is needed; OneLogger's spelling of the keys, such
        as `global_batch_size_or_fn`, will do too, and so will its `telemetry_config`. `TrainingConfig` has all keys; of
        those of OneLogger's that are none, the message says what takes their place.

        Raises:
            ConfigError: a key or a value is wrong; the message names it and what is allowed.
        """
        self._job.configure(config)

    def on_error(self, error: BaseException) -> None:
        """Tell of an exception that a framework has caught and hands to a callback."""
        self._job.fail_current(error)

    def close(self) -> None:
        """Tell of the iterations since the last full window; the logger calls this before it ends."""
        self._job.tell_of_the_rest()

    # The job and what comes before its training.

    def application(self, *, start_time_msec: float | None = None, **attributes: Any) -> Part:
        """The whole job, from now on or from a moment in the past, such as the start of the process."""
        start_time = self._seconds(start_time_msec)
        return Block(partial(self._job.begin_application, attributes, start_time), self._job.end_application)

    def dist_init(self, **attributes: Any) -> Part:
        """Processes finding each other."""
        return SpanBlock(self._kinds[DIST_INIT], attributes)

    def model_init(self, **attributes: Any) -> Part:
        """Making the model."""
        return SpanBlock(self._kinds[MODEL_INIT], attributes)

    def dataloader_init(self, **attributes: Any) -> Part:
        """Making the data loader."""
        return SpanBlock(self._kinds[DATALOADER_INIT], attributes)

    def optimizer_init(self, **attributes: Any) -> Part:
        """Making the optimizer."""
        return SpanBlock(self._kinds[OPTIMIZER_INIT], attributes)

    def checkpoint_load(self, **attributes: Any) -> Part:
        """Loading a checkpoint."""
        return SpanBlock(self._kinds[CHECKPOINT_LOAD], attributes)

    # Training.

    def training_loop(
        self,
        train_iterations_start: int = 0,
        train_samples_start: int | None = None,
        train_iterations_target: Any = None,
        train_samples_target: Any = None,
        *,
        train_iterations_target_or_fn: Any = None,
        train_samples_target_or_fn: Any = None,
    ) -> Part:
        """The training loop, from which iteration it begins and how far it is meant to go."""
        begin = partial(
            self._job.begin_training_loop,
            train_iterations_start,
            train_samples_start,
            train_iterations_target if train_iterations_target is not None else train_iterations_target_or_fn,
            train_samples_target if train_samples_target is not None else train_samples_target_or_fn,
        )
        return Block(begin, self._job.end_training_loop)

    def training_iteration(self, **attributes: Any) -> Part:
        """One iteration; `batch_size` and `tokens`, given here or set on the span, say what it trained on."""
        return SpanBlock(self._iteration, attributes)

    def data_loading(self, **attributes: Any) -> Part:
        """Waiting for data."""
        return SpanBlock(self._kinds[DATA_LOADING], attributes)

    def forward(self, **attributes: Any) -> Part:
        """The forward pass."""
        return SpanBlock(self._kinds[FORWARD], attributes)

    def zero_grad(self, **attributes: Any) -> Part:
        """Clearing gradients."""
        return SpanBlock(self._kinds[ZERO_GRAD], attributes)

    def backward(self, **attributes: Any) -> Part:
        """The backward pass."""
        return SpanBlock(self._kinds[BACKWARD], attributes)

    def optimizer_update(self, **attributes: Any) -> Part:
        """The optimizer's step."""
        return SpanBlock(self._kinds[OPTIMIZER_UPDATE], attributes)

    # Beside the training.

    def validation_loop(self, **attributes: Any) -> Part:
        """One validation; forward passes in it are not counted as the training's."""
        return Block(partial(self._job.begin_validation, attributes), self._job.end_validation)

    def validation_iteration(self, **attributes: Any) -> Part:
        """One of its iterations."""
        return SpanBlock(self._kinds[VALIDATION_ITERATION], attributes)

    def testing_loop(self, **attributes: Any) -> Part:
        """One test of the model."""
        return Block(partial(self._job.begin_testing, attributes), self._job.end_testing)

    def testing_iteration(self, **attributes: Any) -> Part:
        """One of its iterations."""
        return SpanBlock(self._kinds[TESTING_ITERATION], attributes)

    def sampling(self, **attributes: Any) -> Part:
        """Making samples."""
        return Block(partial(self._job.begin_sampling, attributes), self._job.end_beside)

    # Checkpoints.

    def checkpoint_save(self, global_step: int, path: Any = None, strategy: str | None = None) -> Part:
        """Saving a checkpoint: `sync` ones are safe once the block ends well, `async` ones when somebody says so.

        The size of what is at `path` is looked up.
        """
        saving = self._job.saving
        save = saving.save_of(global_step, path, strategy)
        return Block(partial(saving.begin, save), partial(saving.end_block, save))

    def checkpoint_finalization(self, global_step: int, path: Any = None) -> Part:
        """The last part of an `async` checkpoint, on any thread: once the block ends well the checkpoint is safe."""
        saving = self._job.saving
        return Block(
            partial(saving.begin_finalization, global_step),
            partial(saving.end_finalization_block, global_step, path),
        )
