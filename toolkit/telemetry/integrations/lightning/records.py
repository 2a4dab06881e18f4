"""The records of one trainer call: its start, steps, epochs, evaluations, and what remains at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.trainer_call import TrainerCall
from toolkit.telemetry.integrations.lightning.trainer_values import (
    batch_metric_names,
    hyperparameters,
    learning_rates,
    metrics_so_far,
)
from toolkit.telemetry.integrations.metric_names import with_known_names
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.machine.start_fields import module_fields
from toolkit.telemetry.runfolder.records import STEP


def write_start(run: SharedRun, trainer: Any, pl_module: Any, training: Mapping[str, Any]) -> None:
    """Write what is trained or evaluated, and how."""
    config = run.config | hyperparameters(getattr(trainer, "datamodule", None)) | hyperparameters(pl_module)
    run.opened.log_start(config=config or None, model=module_fields(pl_module), training=training)
    run.has_start = True
    known = {"global_batch_size": "effective_batch_size", "micro_batch_size": "batch_size"}
    sizes = {ours: training[theirs] for ours, theirs in known.items() if training.get(theirs)}
    if sizes and run.given is None:
        run.training.configure(**sizes)


def write_step(run: SharedRun, call: TrainerCall, pl_module: Any, step: int) -> None:
    """Write the step that was just completed."""
    log, trainer = run.log, call.trainer
    assert log is not None, "only a run that was opened gets here"
    fields: dict[str, Any] = {}
    every = log.log_every
    if call.is_first or step // every > call.step // every:
        # Lightning collects all metrics, which is slow: only for a step that is recorded.
        now = dict(trainer.logged_metrics)
        fields = with_known_names(passed_to_logger(run, now) | new_metrics(call, now))
        fields.pop("global_step", None)
    divided_by = trainer.accumulate_grad_batches
    if call.batches:
        # Lightning has divided each by that number, of which the last step of an epoch may have fewer.
        is_divided = divided_by > 1 and pl_module.automatic_optimization
        share = (divided_by if is_divided else 1) / call.batches
        fields["train_loss"] = call.loss if share == 1.0 else call.loss * share
    fields |= call.rates or learning_rates(trainer.optimizers)
    fields["epoch"] = trainer.current_epoch
    share = call.sizes.share()
    if share < 1.0:
        internals(log).count_samples(share)
    log.log_step(step, **fields)


def write_epoch(run: SharedRun, call: TrainerCall) -> None:
    """Write the epoch that ended, once, with the metrics logged since."""
    if call.epoch is None:
        return
    (epoch, step), call.epoch = call.epoch, None
    now = metrics_so_far(call.trainer)
    metrics = new_metrics(call, now) | passed_to_logger(run, now)
    run.opened.log_epoch(epoch, global_step=step, **without(metrics, "epoch", "global_step"))


def begin_evaluation(run: SharedRun, call: TrainerCall) -> None:
    """Remember what was logged before an evaluation."""
    call.seen = metrics_so_far(call.trainer)
    call.passed_before = passed_to_logger(run, call.seen)


def write_evaluation(run: SharedRun, call: TrainerCall) -> None:
    """Write an evaluation, with the metrics logged or passed to the logger since it began."""
    now = metrics_so_far(call.trainer)
    metrics = without(new_metrics(call, now), *batch_metric_names(call.trainer))
    metrics |= passed_to_logger(run, now)
    run.add_metrics(call.passed_before)
    call.passed_before = {}
    if metrics:
        run.opened.log_eval(call.trainer.global_step, **without(metrics, "global_step"))


def write_remaining(run: SharedRun, call: TrainerCall, error: BaseException | None) -> None:
    """Write what no further hook would write, for example because of an exception."""
    with run.guard.catch("recording the last epoch"):
        write_epoch(run, call)
    with run.guard.catch("recording the last checkpoints"):
        if call.checkpoints is not None:
            call.checkpoints.record(is_over=error is None)
    with run.guard.catch("recording the last metrics"):
        left = {**call.passed_before, **passed_to_logger(run, metrics_so_far(call.trainer))}
        left = without(left, "epoch", "global_step")
        if left:
            internals(run.opened).put(STEP, {"global_step": call.step, **with_known_names(left)})


def new_metrics(call: TrainerCall, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that were logged since the last record: Lightning keeps the object of an unchanged one."""
    before, call.seen = call.seen, now
    return {name: value for name, value in now.items() if before.get(name) is not value}


def passed_to_logger(run: SharedRun, logged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that the script has passed to the logger, once; all of `logged` are Lightning's own."""
    return without(run.pop_metrics(), *logged)


def without(metrics: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the metrics except these."""
    return {str(name): value for name, value in metrics.items() if str(name) not in names}
