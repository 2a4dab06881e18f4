"""The parts of a step, with `phases=True`: what public hooks tell apart, and what only patched methods do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.spans.span import AnySpan
from toolkit.telemetry.timing.names import BACKWARD, DATA_LOADING, OPTIMIZER_UPDATE, ZERO_GRAD

_PROFILED: Final = ("training_step", "validation_step", "test_step", "optimizer_step")
"""Methods of a module whose calls are timed one by one."""


_Callback = class_of_lightning("Callback")


class StepPhases(_Callback):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """The part that a step is in; the next part ends the one before it.

    Until `stop`, methods are patched, and it is one of the trainer's callbacks: its hooks need no guard, which would
    cost as much as they do.
    """

    def __init__(self, run: SharedRun, trainer: Any) -> None:
        self._log, self._trainer, self._fit = run.opened, trainer, trainer.fit_loop
        self._begin_span = internals(run.opened).begin_part
        self._name = ""
        self._span: AnySpan | None = None
        self._patches = MethodPatches(run.guard)
        self._hooks: list[Any] = []
        self._loaders = internals(run.opened).loader_batches()
        # Loaders are iterated before the training begins.
        self._patches.around(self._fit, "_load_combined_loader_states", before=self._follow_loaders)
        trainer.callbacks.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied trainer records nothing yet.
        return _Callback, ()

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

    def on_before_zero_grad(self, *_: Any) -> None:
        """End the forward pass."""
        self.begin(ZERO_GRAD)

    def on_before_backward(self, *_: Any) -> None:
        """End the forward pass if no gradients were cleared."""
        self.begin(BACKWARD)

    def on_after_backward(self, *_: Any) -> None:
        """End the backward pass."""
        self.end(BACKWARD)

    def on_before_optimizer_step(self, *_: Any) -> None:
        """Begin the optimizer step."""
        self.begin(OPTIMIZER_UPDATE)

    def patch(self, trainer: Any, pl_module: Any) -> None:
        """Patch what the trainer has no hook for, and time the calls of the module's own methods one by one."""
        loop = self._fit.epoch_loop
        # Private: no hook is called before a batch is fetched.
        self._patches.around(loop, "_on_before_fetch", after=lambda *_: self.begin(DATA_LOADING))
        self._patches.around(loop, "_on_after_fetch", before=lambda *_: self.end(DATA_LOADING))
        for optimizer in trainer.optimizers:
            if hasattr(optimizer, "register_step_post_hook"):
                hook: Callable[..., None] = lambda *_: self.end(OPTIMIZER_UPDATE)  # noqa: E731
                self._hooks.append(optimizer.register_step_post_hook(hook))
        # Methods of a compiled module are compiled.
        if getattr(pl_module, "_compiler_ctx", None) is None:
            for name in _PROFILED:
                called = f"{type(pl_module).__name__}.{name}"
                self._patches.wrap(pl_module, name, partial(self._log.profile, name=called))

    def stop(self, error: BaseException | None) -> None:
        """End the open part, and restore the methods."""
        self.end(error=error)
        self._patches.undo()
        if self in self._trainer.callbacks:
            self._trainer.callbacks.remove(self)
        if self._loaders is not None:
            self._loaders.stop()
        for hook in self._hooks:
            hook.remove()

    def _follow_loaders(self, *_: Any) -> None:
        combined = self._fit._combined_loader  # noqa: SLF001 - called between its making and its first use
        if self._loaders is not None:
            for loader in combined.flattened:
                # Of data without a known length, one batch more is fetched.
                self._loaders.follow(loader, is_ahead=math.inf in (combined.limits or ()))
