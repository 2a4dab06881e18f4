"""Callbacks for Ultralytics: each training of a YOLO model is a run."""

# Every callback is given the trainer.
# ruff: noqa: ARG002

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from toolkit.telemetry.core.guard import guarded
from toolkit.telemetry.integrations.framework_run import FrameworkRun
from toolkit.telemetry.logger.machine.start_fields import module_fields


class TelemetryCallbacks(FrameworkRun):
    """Records the trainings of a model: `TelemetryCallbacks(log_dir="logs").add_to(model)`, then `model.train(...)`.

    Give it a logger, which you close yourself, or options. The run is named after the folder that Ultralytics saves
    into, unless `run_name` is given. Nothing raises into the training, except invalid options at the beginning.
    """

    offers_phases = False
    _step = _evaluated_at = 0
    _is_complete = False

    def add_to(self, model: Any) -> None:
        """Add the callbacks to a model, for all of its trainings."""
        for name in vars(TelemetryCallbacks):
            if name.startswith("on_") or name == "teardown":
                model.add_callback(name, getattr(self, name))

    def on_train_start(self, trainer: Any) -> None:
        """Open the run and write the start record."""
        with self.guard.catch("beginning to watch Ultralytics"):
            config, batches = vars(trainer.args), len(trainer.train_loader)
            log = self.open_run(Path(trainer.save_dir).name, config)
            self._step = self._evaluated_at = trainer.start_epoch * batches
            self._is_complete = False
            log.log_start(
                config=config,
                model=module_fields(trainer.model),
                training={
                    "framework": "ultralytics",
                    "max_steps": trainer.epochs * batches,
                    "batch_size": trainer.batch_size,
                    "optimizer": type(trainer.optimizer).__name__,
                },
            )
            log.declare_action("stop")

    @guarded
    def on_train_batch_end(self, trainer: Any) -> None:
        """Write a step: the parts of the loss as means since the epoch began, as Ultralytics shows them."""
        log, parts = self.opened, trainer.label_loss_items(trainer.tloss, prefix="train")
        self._step += 1
        rate = trainer.optimizer.param_groups[0]["lr"]
        log.log_step(self._step, sum(parts.values()), rate, **{"epoch": trainer.epoch, **parts})
        if log.should_stop:
            trainer.stop = True

    @guarded
    def on_fit_epoch_end(self, trainer: Any) -> None:
        """Write an epoch and its evaluation; after the last epoch, the evaluation of the best weights."""
        log, is_after_the_last = self.opened, self._evaluated_at == self._step
        self._evaluated_at = self._step
        if is_after_the_last:
            log.log_eval(self._step, trainer.metrics, evaluated=Path(trainer.best).name)
        else:
            log.log_eval(self._step, trainer.metrics)
            log.log_epoch(trainer.epoch + 1, global_step=self._step, seconds=trainer.epoch_time)

    @guarded
    def on_model_save(self, trainer: Any) -> None:
        """Write a checkpoint."""
        self.opened.log_checkpoint(self._step, trainer.last, trainer.best_fitness == trainer.fitness)

    @guarded
    def on_train_end(self, trainer: Any) -> None:
        """Remember that the training got to its end."""
        self._is_complete = True

    @guarded
    def teardown(self, trainer: Any) -> None:
        """Close the run: Ultralytics calls this also while an exception ends the training."""
        self.end_run(None if self._is_complete else sys.exc_info()[1])
