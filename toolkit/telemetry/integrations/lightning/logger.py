"""A logger for Lightning's trainer, which writes what is passed to loggers into a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.core.config_mapping import mapping_in, resolved
from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.trainer_call import without
from toolkit.telemetry.integrations.lightning.trainer_values import batch_metric_names
from toolkit.telemetry.integrations.logger_setup import GivenLog
from toolkit.telemetry.integrations.metric_names import split, with_known_names
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.machine.start_fields import module_fields

_Logger = class_of_lightning("Logger")


class TelemetryLightningLogger(_Logger):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """A logger for Lightning's trainer: what is logged with `self.log` and the hyperparameters go into a run.

    Together with a `TelemetryCallback`, both write one run, and the callback records everything else. Alone, it
    writes what Lightning passes to loggers, at Lightning's steps, and the run accepts no requests.
    """

    def __init__(
        self,
        log: GivenLog = None,
        *,
        run_name: str | None = None,
        save_dir: str | os.PathLike[str] = "lightning_logs",
        **options: Any,
    ) -> None:
        """Make a logger; checkpoints go into `save_dir`. Raises OptionsError if an option is unknown or invalid."""
        super().__init__()
        self.run = SharedRun(log, run_name=run_name, **options)
        """What it shares with the callback."""
        self._save_dir = os.fspath(save_dir)
        self._latest_step = 0
        self._trainer: Any = None

    @property
    def guard(self) -> Guard:
        """Counts failures of this logger."""
        return self.run.guard

    @property
    def is_live(self) -> bool:
        """Whether anything is written."""
        return self.run.options.enabled

    @property
    def experiment(self) -> TelemetryLogger | None:
        """The logger of the run; None before it has begun."""
        return self.run.log

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.run.run_name or "lightning"

    @property
    def version(self) -> str:
        """Empty, so that a resumed run finds its checkpoints where they were."""
        return ""

    @property
    def save_dir(self) -> str:
        """Where Lightning puts checkpoints and its command line's configuration."""
        return self._save_dir

    @property
    def log_dir(self) -> str | None:
        """The run folder; None before the run has begun."""
        folder = self.run.log.run_folder if self.run.log is not None else None
        return None if folder is None else str(folder)

    @guarded
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Remember the hyperparameters for the start record."""
        self.run.config |= {str(name): value for name, value in (mapping_in(resolved(params)) or {}).items()}

    @guarded
    def log_graph(self, model: Any, *_: Any, **__: Any) -> None:
        """Write the start record if no callback does; Lightning calls this once the hyperparameters are known."""
        # The public property raises where a module has no trainer.
        self._trainer = trainer = getattr(model, "_trainer", None)
        # Predictions log nothing.
        if self.run.has_callback or (trainer is not None and trainer.predicting):
            return
        if trainer is not None and trainer.training:
            self.run.begin_training(trainer)
        if self._opened() and not self.run.has_start:
            self._write_start(module_fields(model))

    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write metrics as those of a step or of an evaluation, by their names."""
        if self.run.has_callback:
            # It records what the script passes; Lightning's own it has from the trainer.
            self.run.add_metrics(metrics)
            return
        evaluates = self._trainer is not None and not self._trainer.training
        if evaluates and metrics.keys() <= batch_metric_names(self._trainer):
            # Numbered by the batches of the evaluation, not by training steps.
            return
        if not self._opened():
            return
        if not self.run.has_start:
            self._write_start(None)
        self._latest_step = at = step if step is not None else self._latest_step
        log, epoch, known = self.run.opened, metrics.get("epoch"), without(metrics, "epoch", "global_step")
        # Lightning's own have an epoch; those of an evaluation come all together.
        of_step, of_evaluation = ({}, known) if evaluates and epoch is not None else split(known)
        if of_step:
            # Lightning itself decides which steps are logged.
            log.write_step(at, **{**with_known_names(of_step), "epoch": epoch})
        if of_evaluation:
            log.log_eval(at, **of_evaluation)

    @guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Record a checkpoint, if no callback does."""
        # Both private: what is public names the best file and the last one, not the one saved now and its step.
        path = getattr(checkpoint_callback, "_last_checkpoint_saved", None)
        if path and not self.run.has_callback and self._opened():
            step = getattr(checkpoint_callback, "_last_global_step_saved", 0)
            is_best = checkpoint_callback.monitor is not None and path == checkpoint_callback.best_model_path
            self.run.opened.log_checkpoint(step, path, is_best=is_best)

    @guarded
    def finalize(self, status: str) -> None:
        """Close the run, if no callback does."""
        self._trainer = None
        if not self.run.has_callback:
            error = sys.exc_info()[1] if status != "success" else None
            self.run.close(error, "failed" if error is None and status != "success" else None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None}

    def _opened(self) -> bool:
        self.run.open(self.name)
        return self.run.is_live

    def _write_start(self, model: Mapping[str, Any] | None) -> None:
        self.run.has_start = True
        self.run.opened.log_start(config=self.run.config or None, model=model)
