"""A logger for Lightning's trainer, which adds what is passed to loggers to the callback's run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from toolkit.telemetry.core.config_mapping import mapping_in, resolved
from toolkit.telemetry.core.guard import Guard, guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.integrations.lightning.framework import class_of_lightning
from toolkit.telemetry.integrations.logger_setup import GivenLog
from toolkit.telemetry.logger.logger import TelemetryLogger

_Logger = class_of_lightning("Logger")


class TelemetryLightningLogger(_Logger):  # type: ignore[misc, valid-type]  # which class that is depends on what is imported
    """A logger for Lightning's trainer: what is logged with `self.log` and the hyperparameters go into a run.

    The run is written by a `TelemetryCallback`: the trainer's own, or one that the logger adds to it.
    """

    callback_class: ClassVar[type[Any]]
    """Set by the callback's module, which imports this one."""

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
        self.run = FrameworkRun(log, run_name=run_name, **options)
        """What it shares with the callback."""
        self.config: dict[str, Any] = {}
        """The hyperparameters that it was given."""
        self.callback: Any = None
        """The trainer's callback that writes its run, while there is one."""
        self._save_dir = os.fspath(save_dir)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "callback": None}

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
        return self.run.run_name or (self.run.given and self.run.given.run_name) or "lightning"

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
        self.config |= {str(name): value for name, value in (mapping_in(resolved(params)) or {}).items()}

    @guarded
    def log_graph(self, model: Any, *_: Any, **__: Any) -> None:
        """Give the trainer a callback, if it has none that writes this run; Lightning calls this before it begins."""
        # The public property raises where a module has no trainer.
        trainer = getattr(model, "_trainer", None)
        if trainer is None or trainer.predicting or self.callback is not None:
            return
        callback = self.callback_class()
        trainer.callbacks.insert(0, callback)
        callback.setup(trainer)
        if trainer.training:
            callback.on_fit_start(trainer, model)

    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:  # noqa: ARG002 - Lightning's
        """Record what the script passes, by itself; Lightning's own metrics the callback has from the trainer."""
        if self.callback is not None:
            self.callback.write_passed(metrics)
        else:
            self.guard.report_misuse(
                "log_metrics was called while no Trainer was running; the call is left out"
            )
