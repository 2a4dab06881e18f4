"""A callback for Keras 3: each `fit` is a run."""

# Every hook of a callback has the logs that Keras gives it.
# ruff: noqa: ARG002

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from keras import __version__ as keras_version
from keras.callbacks import Callback

from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.logger_setup import GivenLog
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.integrations.metric_names import as_number, split, with_known_names


class TelemetryCallback(FrameworkRun, Callback):  # type: ignore[misc]  # Keras has no types
    """Records each `fit` as a run: `model.fit(..., callbacks=[TelemetryCallback(log_dir="logs")])`.

    Give it a logger, which you close yourself, or options. The run is named after the model, unless `run_name` is
    given. Nothing it does raises into Keras, except invalid options when it is created.
    """

    reports_failures = False
    offers_phases = False

    def __init__(self, log: GivenLog = None, *, run_name: str | None = None, **options: Any) -> None:
        """Make a callback; no folder is created yet. Raises OptionsError if an option is unknown or invalid."""
        Callback.__init__(self)
        FrameworkRun.__init__(self, log, run_name=run_name, **options)
        self._patches: MethodPatches | None = None
        self._is_new = False
        self._step = 0
        self._epoch, self._epoch_began = 0, 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Note that a `fit` begins."""
        with self.guard.catch("beginning to watch Keras"):
            self.end_run(InterruptedError("another training began before this one reported its end"))
            self._is_new = self.options.enabled

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Open the run before the first epoch, whose number is known by now."""
        is_new, self._is_new = self._is_new, False
        if is_new:
            with self.guard.catch("beginning to watch Keras"):
                self._begin(self.model, epoch)
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

    def _begin(self, model: Any, first_epoch: int) -> None:
        optimizer, config = model.optimizer, {"initial_epoch": first_epoch, **(self.params or {})}
        epochs, steps = config.get("epochs"), config.get("steps")
        batches = (epochs - first_epoch) * steps if epochs and steps else None
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
                    "optimizer": type(optimizer).__name__,
                    "learning_rate": config["optimizer"].get("learning_rate"),
                },
            )
            log.declare_action("stop")
        # Not `on_train_batch_end`: because of that hook Keras would wait for the device in every step.
        patches.follow(model, "train_function", self._follow_step)
        for name in ("save", "save_weights"):
            patches.follow(model, name, self._follow_save)

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
        logs = logs if isinstance(logs, Mapping) else {}
        fields = with_known_names({name: as_number(value) for name, value in logs.items()})
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

    def _follow_save(self, filepath: Any, *_: Any, **__: Any) -> Following:
        yield
        self.opened.log_checkpoint(self._step, filepath)


def _count(weights: Any) -> int:
    return sum(math.prod(weight.shape) for weight in weights)
