"""The parts of a step of an accelerator, with `phases=True`: its methods are patched until `stop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.records.loader_batches import LoaderBatches
from toolkit.telemetry.runfolder.evidence.batches import BatchRow
from toolkit.telemetry.timing.names import FORWARD, OPTIMIZER_UPDATE, TRAINING_ITERATION, TRAINING_LOOP


class AcceleratorPhases:
    """Times iterations, forward and backward passes and loads, and keeps gradient norms and batches."""

    def __init__(self, accelerator: Any, run: FrameworkRun, begin_loop: Callable[[], None]) -> None:
        log = run.opened
        self.guard: Guard = log.guard
        self.is_live = True
        self.grad_norm: Any = None
        """The last one, until it is recorded."""
        self._accelerator, self._log, self._open, self._begin_loop = accelerator, log, run.phases, begin_loop
        self._batch: BatchRow | None = None
        self._patches = patches = MethodPatches(log.guard)
        self._loaders: LoaderBatches | None = internals(log).loader_batches(self._keep_batch)
        patches.time(accelerator, "load_state", log.training.checkpoint_load)
        patches.time(accelerator, "backward", log.training.backward)
        patches.around(accelerator, "backward", before=self._end_forward)
        patches.around(accelerator, "clip_grad_norm_", after=self._keep_norm)
        patches.wrap(accelerator, "accumulate", self._timing_batches)
        patches.around(accelerator, "prepare", after=self._follow_prepared)
        patches.around(accelerator, "skip_first_batches", after=self._follow_prepared)
        self._follow(*getattr(accelerator, "_dataloaders", ()))

    def stop(self) -> None:
        """Restore the methods."""
        self.is_live = False
        self._patches.undo()
        if self._loaders is not None:
            self._loaders.stop()

    def _timing_batches(self, accumulate: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def timed(*models: Any) -> Iterator[Any]:
            self._begin_batch()
            try:
                with accumulate(*models) as given:
                    yield given
            except BaseException as error:
                with self.guard.catch("ending an iteration that failed"):
                    self._open.end_all(error, within=TRAINING_LOOP)
                raise
            self._end_batch()

        return timed

    @guarded
    def _begin_batch(self) -> None:
        self._begin_loop()
        if not self._open.has(TRAINING_ITERATION):
            self._open.begin(TRAINING_ITERATION, self._log.training.training_iteration())
        self._open.begin(FORWARD, self._log.training.forward())

    @guarded
    def _end_batch(self) -> None:
        self._open.end(OPTIMIZER_UPDATE, FORWARD)
        # Gradients that are not synchronised are still being accumulated.
        if self._accelerator.sync_gradients:
            self._open.end(TRAINING_ITERATION)

    def _end_forward(self, *_: Any, **__: Any) -> None:
        self._open.end(FORWARD)
        batch, self._batch = self._batch, None
        if batch is not None:
            internals(self._log).keep_batch(batch)

    def _keep_norm(self, norm: Any, *_: Any, **__: Any) -> None:
        # None while gradients are being accumulated.
        self.grad_norm = norm if norm is not None else self.grad_norm

    def _follow_prepared(self, prepared: Any, *_: Any, **__: Any) -> None:
        self._follow(*(prepared if isinstance(prepared, tuple) else (prepared,)))

    def _follow(self, *loaders: Any) -> None:
        if self._loaders is not None:
            for loader in loaders:
                self._loaders.follow(loader)

    def _keep_batch(self, batch: BatchRow) -> None:
        # A batch is trained on if a backward pass follows; those of an evaluation are not.
        self._batch = batch
