"""The parts of a step, with `phases=True`: those that Lightning's profiler is called for, and the batches."""

from __future__ import annotations

import math
from typing import Any, Final

from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.timing.names import BACKWARD, DATA_LOADING, FORWARD, OPTIMIZER_UPDATE, ZERO_GRAD

_PARTS: Final = {
    "train_dataloader_next": DATA_LOADING,
    "training_step": FORWARD,
    "optimizer_zero_grad": ZERO_GRAD,
    "backward": BACKWARD,
}
"""Endings of the profiler's actions; the optimizer's includes the others, so a hook begins that one."""


class StepPhases:
    """Patches the profiler of one trainer, of whatever class it is, until `stop`."""

    def __init__(self, run: FrameworkRun, trainer: Any) -> None:
        self._run, self._fit = run, trainer.fit_loop
        self._loaders = internals(run.opened).loader_batches()
        self._patches = MethodPatches(run.guard)
        self._patches.follow(trainer.profiler, "start", self._begin)
        self._patches.follow(trainer.profiler, "stop", self._end)
        # Private: no hook is called between the making of the loaders and their first use.
        self._patches.follow(self._fit, "_load_combined_loader_states", self._follow_loaders)

    def stop(self) -> None:
        """Restore the methods."""
        self._patches.undo()
        if self._loaders is not None:
            self._loaders.stop()

    def _begin(self, action: str) -> None:
        part = _PARTS.get(action.rpartition(".")[2])
        if part is not None:
            self._run.begin_part(part)

    def _end(self, action: str) -> None:
        ending = action.rpartition(".")[2]
        self._run.end_phases(_PARTS.get(ending, OPTIMIZER_UPDATE if ending == "optimizer_step" else ""))

    def _follow_loaders(self, *_: Any) -> None:
        combined = self._fit._combined_loader  # noqa: SLF001 - called between its making and its first use
        if self._loaders is not None:
            for loader in combined.flattened:
                # Of data without a known length, one batch more is fetched.
                self._loaders.follow(loader, is_ahead=math.inf in (combined.limits or ()))
