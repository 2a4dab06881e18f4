"""A callback for Keras 3: each `fit` is a run."""

# Every hook of a callback has the logs that Keras gives it.
# ruff: noqa: ARG002

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

from keras import __version__ as keras_version
from keras.callbacks import Callback

from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.logger_setup import GivenLog
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.integrations.metric_names import split, with_known_names

_PLAIN: Final = (bool, int, float, str)


class TelemetryCallback(FrameworkRun, Callback):  # type: ignore[misc]  # Keras has no types
    """Records each `fit` as a run: `model.fit(..., callbacks=[TelemetryCallback(log_dir="logs")])`.

    Give it a logger, which you close yourself, or options. The run is named after the model, unless `run_name` is
    given. Nothing it does raises into Keras, except invalid options when it is created.
    """

    def __init__(self, log: GivenLog = None, *, run_name: str | None = None, **options: Any) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        Callback.__init__(self)
        FrameworkRun.__init__(self, log, run_name=run_name, **options)
        self._patches: MethodPatches | None = None
        self._step = 0
        self._epoch, self._epoch_began = 0, 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the run and write the start record."""
        with self.guard.catch("beginning to watch Keras"):
            self._begin(self.model)

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember when the epoch began."""
        self._epoch, self._epoch_began = epoch, time.monotonic()

    @guarded
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record an epoch with its mean metrics, and the evaluation on the validation data."""
        log, (of_epoch, of_evaluation) = self.opened, split(logs or {})
        seconds = time.monotonic() - self._epoch_began
        log.log_epoch(epoch + 1, of_epoch, global_step=self._step, seconds=seconds)
        if of_evaluation:
            log.log_eval(self._step, of_evaluation)

    @guarded
    def on_train_end(self, logs: Any = None) -> None:
        """Close the run."""
        self.end_run(None)

    def _begin(self, model: Any) -> None:
        fit, optimizer = _variables_of_fit(model), model.optimizer
        epochs, steps = ((self.params or {}).get(name) for name in ("epochs", "steps"))
        batches = (epochs - fit.get("initial_epoch", 0)) * steps if epochs and steps else None
        config: dict[str, Any] = {name: value for name, value in fit.items() if isinstance(value, _PLAIN)}
        # Keras keeps a learning rate of 0.1 as a float of 32 bits.
        config["optimizer"] = {
            name: float(f"{value:.7g}") if isinstance(value, float) else value
            for name, value in optimizer.get_config().items()
        }
        # In batches; the optimizer counts its updates.
        self._step = int(optimizer.iterations) * (optimizer.gradient_accumulation_steps or 1)
        log = self.open_run(model.name, config)
        if not self.is_live:
            return
        self._patches = patches = MethodPatches(log.guard)
        with self.guard.catch("writing the start record"):
            log.log_start(
                config=config,
                model={
                    "name": model.name,
                    "architecture": type(model).__name__,
                    "total_params": _count(model.weights),
                    "trainable_params": _count(model.trainable_weights),
                },
                training={
                    "framework": f"keras {keras_version}",
                    "max_steps": None if batches is None else self._step + batches,
                    "batch_size": config.get("batch_size"),
                    "optimizer": type(optimizer).__name__,
                    "learning_rate": config["optimizer"].get("learning_rate"),
                },
            )
            log.declare_action("stop")
        # Not `on_train_batch_end`: because of that hook Keras would wait for the device in every step.
        patches.follow(model, "train_function", self._follow_step)
        for name in ("save", "save_weights"):
            patches.follow(model, name, self._follow_save)
        if "callbacks" in fit:
            # The list is gone once `fit` is, also after an exception in the data or in another callback.
            weakref.finalize(fit["callbacks"], self._close_if, patches).atexit = False

    def _follow_step(self, *_: Any, **__: Any) -> Following:
        """Record a step with the metrics that Keras shows: means since the epoch began."""
        log, model = self.opened, self.model
        try:
            result = yield
        except BaseException as error:
            self.end_run(error)
            raise
        self._step += model.steps_per_execution
        # With JAX, the state comes with them.
        logs = result[0] if isinstance(result, tuple) else result
        fields = with_known_names(logs if isinstance(logs, Mapping) else {})
        if self._step % log.log_every == 0:
            rate = model.optimizer.learning_rate
            fields["lr"] = getattr(rate, "value", rate)
        log.log_step(self._step, **{**fields, "epoch": self._epoch})
        if log.should_stop:
            model.stop_training = True

    def end_run(self, error: BaseException | None, status: str | None = None) -> None:
        """Restore Keras's methods, and close the run if it was opened here."""
        if self._patches is not None:
            self._patches.undo()
        super().end_run(error, status)

    def _close_if(self, patches: MethodPatches) -> None:
        with self.guard.catch("closing the run of Keras"):
            if self._patches is patches:
                self.end_run(InterruptedError("fit ended with an exception"))

    def _follow_save(self, filepath: Any, *_: Any, **__: Any) -> Following:
        yield
        self.opened.log_checkpoint(self._step, filepath)


def _count(weights: Any) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _variables_of_fit(model: Any) -> dict[str, Any]:
    """Return the arguments of the `fit` that is calling; Keras itself passes two numbers on."""
    frame = sys._getframe()  # noqa: SLF001
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            return {name: frame.f_locals.get(name) for name in names}
    return {}
