"""What a Lightning trainer says of itself: its setup, its learning rates, its metrics and its state."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from toolkit.telemetry.integrations.metric_names import as_number
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.records import StateTrigger


def hyperparameters(owner: Any) -> dict[str, Any]:
    """Return the hyperparameters that a module or a data module has saved."""
    return {str(name): value for name, value in dict(getattr(owner, "hparams", None) or {}).items()}


def training_fields(trainer: Any) -> dict[str, Any]:
    """Return how it is trained; unknown values are None and left out of the record."""
    batch_size = batch_size_of(trainer)
    accumulated = trainer.accumulate_grad_batches
    schedulers = [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]
    clips_by_norm = getattr(trainer, "gradient_clip_algorithm", None) in (None, "norm")
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return {
        "batch_size": batch_size,
        "gradient_accumulation_steps": accumulated,
        "effective_batch_size": None if batch_size is None else batch_size * accumulated * trainer.world_size,
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers) or None,
        "scheduler": ", ".join(schedulers) or None,
        "learning_rate": learning_rates(trainer.optimizers).get("lr"),
        "max_steps": max_steps(trainer),
        "max_epochs": trainer.max_epochs if trainer.max_epochs != -1 else None,
        "max_grad_norm": trainer.gradient_clip_val if clips_by_norm else None,
        "seed": int(seed) if seed.isdecimal() else None,
        "resumed_from_step": trainer.global_step or None,
        **hardware_fields(trainer),
    }


def hardware_fields(trainer: Any) -> dict[str, Any]:
    """Return what the trainer runs on, for trainings and evaluations."""
    return {
        "framework": "lightning",
        "dtype": str(trainer.precision),
        "strategy": type(trainer.strategy).__name__,
        "world_size": trainer.world_size,
    }


def max_steps(trainer: Any) -> int | None:
    """Return the largest number of steps the training can have; None if unknown."""
    # With manual optimization a batch may have any number of steps, and a callback may change the accumulation.
    is_steady = trainer.lightning_module.automatic_optimization and not any(
        hasattr(callback, "going_to_accumulate_grad_batches") for callback in trainer.callbacks
    )
    steps = trainer.estimated_stepping_batches if is_steady else trainer.max_steps
    return int(steps) if 0 <= steps < math.inf else None


def batch_size_of(trainer: Any) -> int | None:
    """Return the samples of a batch; None if unknown."""
    size = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def learning_rates(optimizers: Iterable[Any]) -> dict[str, Any]:
    """Return the current learning rate of each parameter group: `lr`, then `lr_1`, `lr_2`, …"""
    rates: dict[str, Any] = {}
    place = 0
    # Loops: this is called in every step.
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            if "lr" in group:
                rate = group["lr"]
                rates[f"lr_{place}" if place else "lr"] = rate if type(rate) is float else as_number(rate)
            place += 1
    return rates


def metrics_so_far(trainer: Any) -> dict[str, Any]:
    """Return the metrics as Lightning last collected them.

    Its property of that name collects them again, which between the steps gathers them from all ranks: a rank that
    asks alone would wait for the others forever.
    """
    connector = getattr(trainer, "_logger_connector", None)
    return dict(getattr(connector, "_logged_metrics", None) or {})


def put_state(log: TelemetryLogger, trainer: Any, at: StateTrigger, checkpoint: Any) -> None:
    """Record the state of the training: what is saved or was loaded, or what it begins with."""
    done = trainer.fit_loop.epoch_loop.batch_progress
    epoch, position = trainer.current_epoch, done.current.processed
    if isinstance(trainer.num_training_batches, int) and trainer.num_training_batches > 0:
        # Lightning itself counts the end of an epoch as another one after a load than before.
        epoch, position = divmod(done.total.processed, trainer.num_training_batches)
    log.state(
        at,
        trainer.global_step,
        checkpoint=checkpoint,
        model=trainer.lightning_module,
        optimizer=trainer.optimizers,
        scheduler=[config.scheduler for config in trainer.lr_scheduler_configs],
        scaler=getattr(trainer.precision_plugin, "scaler", None),
        precision=str(trainer.precision),
        epoch=epoch,
        data_position=position,
        world_size=trainer.world_size,
        batch_size=batch_size_of(trainer),
        accumulation=trainer.accumulate_grad_batches,
    )
