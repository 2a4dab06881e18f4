"""Lightning's part of the start record: the module, its hyperparameters and its trainer."""

from __future__ import annotations

import os
from typing import Any

from toolkit.telemetry.integrations.lightning.trainer_call import learning_rates
from toolkit.telemetry.integrations.lightning.training_state import batch_size_of


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
    limits = [] if trainer.max_steps == -1 else [int(trainer.max_steps)]
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    # With manual optimization a batch may have any number of steps, and a callback may change the accumulation.
    is_steady = trainer.lightning_module.automatic_optimization and not any(
        hasattr(callback, "going_to_accumulate_grad_batches") for callback in trainer.callbacks
    )
    if is_steady and epochs not in (None, -1) and isinstance(batches, int):
        # The last batches of an epoch make a step even if they are fewer.
        limits.append(int(-(-batches // trainer.accumulate_grad_batches) * epochs))
    return min(limits, default=None)
