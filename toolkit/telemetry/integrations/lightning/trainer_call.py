"""One trainer call: a fit, a validation or a test, its current step, and the records of all of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.core.clock import wall_time_of
from toolkit.telemetry.integrations.batch_sizes import BatchSizes
from toolkit.telemetry.integrations.lightning.checkpoints import SavedCheckpoints
from toolkit.telemetry.integrations.lightning.phases import StepPhases
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.trainer_values import (
    batch_metric_names,
    hyperparameters,
    learning_rates,
    metrics_so_far,
)
from toolkit.telemetry.integrations.metric_names import as_number, with_known_names
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import module_fields
from toolkit.telemetry.runfolder.records import STEP


class TrainerCall:
    """Begins with the trainer's `setup`, and is dropped at its end."""

    def __init__(self, run: SharedRun, trainer: Any = None, *, is_ignored: bool = False) -> None:
        self.run, self.trainer, self.is_ignored = run, trainer, is_ignored
        self.began_ms = wall_time_of(time.monotonic()) * 1000.0
        self.parts: StepPhases | None = None
        """The parts of each step, if they are recorded."""
        self.checkpoints: SavedCheckpoints | None = None
        self.evaluation: tuple[str, str] | None = None
        """The loop of the current evaluation, and its iteration."""
        self.step = 0
        """The latest completed step."""
        self.epoch: tuple[int, int] | None = None
        """An epoch that ended and is not recorded yet, and its last step."""
        self.sizes = BatchSizes()
        self.rates: dict[str, Any] = {}
        """Learning rates of the current step, before its schedulers change them."""
        self._is_first = True
        self._loss: Any = None
        """Of the batches of the current step, added up; on a GPU this is done there, without waiting for it."""
        self._batches = 0
        self._seen: Mapping[str, Any] = {}
        """The module's metrics when the last record was written."""
        self._passed_before: dict[str, Any] = {}
        """Metrics that were passed to the logger before the current evaluation."""

    def add_loss(self, outputs: Any) -> None:
        """Add what `training_step` returned for a batch."""
        # Lightning itself passes a dict; checking for other mappings costs more than the rest of this.
        is_mapping = type(outputs) is dict or isinstance(outputs, Mapping)
        loss = as_number(outputs.get("loss") if is_mapping else outputs)
        if loss is not None:
            self._loss = loss if self._batches == 0 else self._loss + loss
            self._batches += 1

    def write_start(self, pl_module: Any, training: Mapping[str, Any]) -> None:
        """Write what is trained or evaluated, and how."""
        run, data = self.run, getattr(self.trainer, "datamodule", None)
        config = run.config | hyperparameters(data) | hyperparameters(pl_module)
        run.opened.log_start(config=config or None, model=module_fields(pl_module), training=training)
        run.has_start = True
        known = {"global_batch_size": "effective_batch_size", "micro_batch_size": "batch_size"}
        sizes = {ours: training[theirs] for ours, theirs in known.items() if training.get(theirs)}
        if sizes and run.given is None:
            run.opened.training.configure(**sizes)

    def write_step(self, pl_module: Any, step: int) -> None:
        """Write the step that was just completed, and begin the next one."""
        log, trainer = self.run.log, self.trainer
        assert log is not None, "only a run that was opened gets here"
        loss, batches, rates, before = self._loss, self._batches, self.rates, self.step
        is_first, self._is_first = self._is_first, False
        self.step, self.rates, self._loss, self._batches = step, {}, None, 0
        fields: dict[str, Any] = {}
        every = log.log_every
        if is_first or step // every > before // every:
            # Lightning collects all metrics, which is slow: only for a step that is recorded.
            now = dict(trainer.logged_metrics)
            fields = with_known_names(self._passed(now) | self._new_metrics(now))
            fields.pop("global_step", None)
        if batches:
            # Lightning has divided each by that number, of which the last step of an epoch may have fewer.
            divided_by = trainer.accumulate_grad_batches
            is_divided = divided_by > 1 and pl_module.automatic_optimization
            share = (divided_by if is_divided else 1) / batches
            fields["train_loss"] = loss if share == 1.0 else loss * share
        fields |= rates or learning_rates(trainer.optimizers)
        fields["epoch"] = trainer.current_epoch
        share = self.sizes.share()
        if share < 1.0:
            internals(log).count_samples(share)
        log.log_step(step, **fields)

    def end_epoch(self) -> None:
        """Remember that an epoch ended; its metrics are complete only after this."""
        # Reading them now would make Lightning gather them from all ranks, in the middle of something else.
        self.epoch = self.trainer.current_epoch, self.trainer.global_step
        self._seen = metrics_so_far(self.trainer)

    def write_epoch(self) -> None:
        """Write the epoch that ended, once, with the metrics logged since."""
        if self.epoch is None:
            return
        (epoch, step), self.epoch = self.epoch, None
        now = metrics_so_far(self.trainer)
        metrics = self._new_metrics(now) | self._passed(now)
        self.run.opened.log_epoch(epoch, global_step=step, **without(metrics, "epoch", "global_step"))

    def begin_evaluation(self, loop: str, iteration: str) -> None:
        """Remember what was logged before an evaluation."""
        self.evaluation = loop, iteration
        self._seen = metrics_so_far(self.trainer)
        self._passed_before = self._passed(self._seen)

    def write_evaluation(self) -> None:
        """Write an evaluation, with the metrics logged or passed to the logger since it began."""
        now = metrics_so_far(self.trainer)
        metrics = without(self._new_metrics(now), *batch_metric_names(self.trainer)) | self._passed(now)
        self.run.add_metrics(self._passed_before)
        self._passed_before = {}
        if metrics:
            self.run.opened.log_eval(self.trainer.global_step, **without(metrics, "global_step"))

    def write_remaining(self, error: BaseException | None) -> None:
        """Write what no further hook would write, for example because of an exception."""
        guard = self.run.guard
        with guard.catch("recording the last epoch"):
            self.write_epoch()
        with guard.catch("recording the last checkpoints"):
            if self.checkpoints is not None:
                self.checkpoints.record(is_over=error is None)
        with guard.catch("recording the last metrics"):
            left = {**self._passed_before, **self._passed(metrics_so_far(self.trainer))}
            left = without(left, "epoch", "global_step")
            if left:
                internals(self.run.opened).put(STEP, {"global_step": self.step, **with_known_names(left)})

    def _new_metrics(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """Return those logged since the last record: Lightning keeps the object of an unchanged one."""
        before, self._seen = self._seen, now
        return {name: value for name, value in now.items() if before.get(name) is not value}

    def _passed(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the script has passed to the logger, once; all of `logged` are Lightning's own."""
        return without(self.run.pop_metrics(), *logged)


def without(metrics: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the metrics except these."""
    return {str(name): value for name, value in metrics.items() if str(name) not in names}
