"""The records of one call of the trainer: its start, steps, epochs and evaluations, and what is left at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.runfolder.records import STEP
from toolkit.telemetry.integrations.lightning.description import about_model, hyperparameters
from toolkit.telemetry.integrations.lightning.module_metrics import (
    fresh_metrics,
    metrics_of_batch,
    metrics_so_far,
    names_of_single_batches,
    new_metrics,
    without,
)
from toolkit.telemetry.integrations.lightning.one_call import OneCall
from toolkit.telemetry.integrations.lightning.shared_run import SharedRun
from toolkit.telemetry.integrations.lightning.step_so_far import as_number, learning_rates
from toolkit.telemetry.integrations.metric_names import with_known_names


def put_start(run: SharedRun, trainer: Any, pl_module: Any, training: Mapping[str, Any]) -> None:
    """Say what is trained or evaluated, and how."""
    config = {**run.config, **hyperparameters(getattr(trainer, "datamodule", None))}
    config |= hyperparameters(pl_module)
    run.opened.log_start(config=config or None, model=about_model(pl_module), training=training)
    run.has_start = True
    known = {"global_batch_size": "effective_batch_size", "micro_batch_size": "batch_size"}
    sizes = {ours: training[theirs] for ours, theirs in known.items() if training.get(theirs)}
    if sizes and run.is_ours:
        run.training.configure(**sizes)


def put_step(run: SharedRun, call: OneCall, pl_module: Any, number: int) -> None:
    """Tell of the step that was made just now."""
    log, step, trainer = run.opened, call.step, call.trainer
    if step.is_recorded(number, log.log_every):
        # Lightning puts all of them together, which takes its time: only for a step that is recorded.
        metrics = {**metrics_of_batch(trainer), **run.take_metrics()}
    else:
        metrics = {name: as_number(value) for name, value in fresh_metrics(trainer, step.seen).items()}
    fields: dict[str, Any] = with_known_names(without(metrics, "global_step"))
    loss = step.mean_loss(trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1)
    if loss is not None:
        fields["train_loss"] = loss
    fields |= step.rates or learning_rates(trainer.optimizers)
    fields["epoch"] = trainer.current_epoch
    share = step.sizes.share()
    if share < 1.0:
        log.count_samples(share)
    log.log_step(number, **fields)


def put_epoch(run: SharedRun, call: OneCall) -> None:
    """Tell of the epoch that ended, once, with what was logged since."""
    if call.epoch is None:
        return
    (epoch, step), call.epoch = call.epoch, None
    metrics = new_metrics(call.metrics_before, metrics_so_far(call.trainer)) | run.take_metrics()
    run.opened.log_epoch(epoch, global_step=step, **without(metrics, "epoch", "global_step"))


def begin_evaluation(run: SharedRun, call: OneCall) -> None:
    """Remember what was logged before an evaluation."""
    call.metrics_before, call.handed_before = metrics_so_far(call.trainer), run.take_metrics()


def put_evaluation(run: SharedRun, call: OneCall) -> None:
    """Tell of an evaluation, with what was logged and handed to the logger since it began."""
    metrics = new_metrics(call.metrics_before, metrics_so_far(call.trainer))
    metrics = without(metrics, *names_of_single_batches(call.trainer)) | run.take_metrics()
    run.add_metrics(call.handed_before)
    call.handed_before = {}
    if metrics:
        run.opened.log_eval(call.trainer.global_step, **without(metrics, "global_step"))


def put_the_rest(run: SharedRun, call: OneCall) -> None:
    """Tell of what no further hook would: an exception may have come before it."""
    with run.guard.catch("telling of the last epoch"):
        put_epoch(run, call)
    with run.guard.catch("telling of the last checkpoints"):
        if call.checkpoints is not None:
            call.checkpoints.tell_of_those_there()
    with run.guard.catch("telling of the last metrics"):
        left = without({**call.handed_before, **run.take_metrics()}, "global_step")
        if left:
            run.opened.log_event(STEP, global_step=call.step.number, **with_known_names(left))
