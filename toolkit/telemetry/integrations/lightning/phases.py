"""The parts of a step, with `phases=True`: what public hooks tell apart, and what only patched methods do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.records.loader_batches import LoaderBatches
from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.timing.names import DATA_LOADING, OPTIMIZER_UPDATE

_PROFILED: Final = ("training_step", "validation_step", "test_step", "optimizer_step")
"""Methods of a module whose calls are timed one by one."""


class StepPhases:
    """The part that a step is in; the next part ends the one before it. Methods stay patched until `stop`."""

    def __init__(self, run: SharedRun) -> None:
        self._run = run
        self._begin_span = internals(run.opened).begin_part
        self._name = ""
        self._span: AnySpan | None = None
        self._patches = MethodPatches(run.guard)
        self._hooks: list[Any] = []
        self._loaders: LoaderBatches | None = None
        self._profiled: set[int] = set()

    def begin(self, name: str) -> None:
        """End the open part, and begin this one. Nothing in here can fail."""
        self.end()
        self._name, self._span = name, self._begin_span(name)

    def end(self, name: str | None = None, *, error: BaseException | None = None) -> None:
        """End the open part, or only one of this name, normally or with `error`. Nothing in here can fail."""
        span = self._span
        if span is not None and name in (None, self._name):
            self._span = None
            span.__exit__(None if error is None else type(error), error, None)

    def follow_loaders(self, trainer: Any) -> None:
        """Keep the batches of the training's loaders, which are iterated before the training begins."""
        loop = trainer.fit_loop
        self._loaders = loaders = internals(self._run.opened).loader_batches()
        if loaders is None:
            return

        def follow_all(*_: Any) -> None:
            combined = loop._combined_loader  # noqa: SLF001 - called between its making and its first use
            for loader in combined.flattened:
                # Of data without a known length, one batch more is fetched.
                loaders.follow(loader, is_ahead=math.inf in (combined.limits or ()))

        self._patches.around(loop, "_load_combined_loader_states", before=follow_all)

    def patch(self, trainer: Any) -> None:
        """Patch what the trainer has no hook for."""
        loop = trainer.fit_loop.epoch_loop
        # Private: no hook is called before a batch is fetched.
        self._patches.around(loop, "_on_before_fetch", after=lambda *_: self.begin(DATA_LOADING))
        self._patches.around(loop, "_on_after_fetch", before=lambda *_: self.end(DATA_LOADING))
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                hook: Callable[..., None] = lambda *_: self.end(OPTIMIZER_UPDATE)  # noqa: E731
                self._hooks.append(optimizer.register_step_post_hook(hook))

    def profile(self, pl_module: Any) -> None:
        """Time the calls of the module's own methods one by one; those of a compiled module are compiled."""
        if id(pl_module) in self._profiled or getattr(pl_module, "_compiler_ctx", None) is not None:
            return
        self._profiled.add(id(pl_module))
        for name in _PROFILED:
            called = f"{type(pl_module).__name__}.{name}"
            self._patches.wrap(pl_module, name, partial(self._run.opened.profile, name=called))

    def stop(self) -> None:
        """Restore the methods."""
        self._patches.undo()
        if self._loaders is not None:
            self._loaders.stop()
        for hook in self._hooks:
            hook.remove()
