"""The parts of a step of an accelerator, with `phases=True`: its methods are patched until `stop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.runfolder.evidence.batches import BatchRow
from toolkit.telemetry.timing.names import FORWARD, OPTIMIZER_UPDATE, TRAINING_ITERATION


class AcceleratorPhases:
    """Times iterations, forward and backward passes and loads, and keeps gradient norms and batches."""

    def __init__(self, accelerator: Any, run: FrameworkRun, begin_loop: Callable[[], None]) -> None:
        log = run.opened
        self.grad_norm: Any = None
        """The last one, until it is recorded."""
        self._accelerator, self._run, self._begin_loop = accelerator, run, begin_loop
        self._batch: BatchRow | None = None
        self._loaders = internals(log).loader_batches(self._keep_batch)
        self._patches = patches = MethodPatches(log.guard)
        patches.time(accelerator, "load_state", log.training.checkpoint_load)
        patches.time(accelerator, "backward", log.training.backward)
        patches.follow(accelerator, "backward", self._end_forward)
        patches.follow(accelerator, "clip_grad_norm_", self._keep_norm)
        patches.wrap(accelerator, "accumulate", self._timing_batches)
        for name in ("prepare", "skip_first_batches"):
            patches.follow(accelerator, name, self._follow_prepared)
        self._follow(getattr(accelerator, "_dataloaders", ()))

    def stop(self) -> None:
        """Restore the methods."""
        self._patches.undo()
        if self._loaders is not None:
            self._loaders.stop()

    def _timing_batches(self, accumulate: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def timed(*models: Any) -> Iterator[Any]:
            guard = self._run.guard
            guard.call("beginning an iteration", self._begin_batch)
            with accumulate(*models) as given:
                yield given
            guard.call("ending an iteration", self._end_batch)

        return timed

    def _begin_batch(self) -> None:
        self._begin_loop()
        if not self._run.has_phase(TRAINING_ITERATION):
            self._run.begin_phase(TRAINING_ITERATION)
        self._run.begin_phase(FORWARD)

    def _end_batch(self) -> None:
        self._run.end_phases(OPTIMIZER_UPDATE, FORWARD)
        # Gradients that are not synchronised are still being accumulated.
        if self._accelerator.sync_gradients:
            self._run.end_phases(TRAINING_ITERATION)

    def _end_forward(self, *_: Any, **__: Any) -> None:
        self._run.end_phases(FORWARD)
        batch, self._batch = self._batch, None
        internals(self._run.opened).keep_batch(batch)

    def _keep_norm(self, *_: Any, **__: Any) -> Following:
        norm = yield
        # None while gradients are being accumulated.
        self.grad_norm = norm if norm is not None else self.grad_norm

    def _follow_prepared(self, *_: Any, **__: Any) -> Following:
        prepared = yield
        self._follow(prepared if isinstance(prepared, tuple) else (prepared,))

    def _follow(self, loaders: Any) -> None:
        if self._loaders is not None:
            for loader in loaders:
                self._loaders.follow(loader)

    def _keep_batch(self, batch: BatchRow) -> None:
        # A batch is trained on if a backward pass follows; those of an evaluation are not.
        self._batch = batch
