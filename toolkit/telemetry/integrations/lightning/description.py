"""What the start record says of a module, its data and its trainer."""

from __future__ import annotations

import os
from typing import Any

from toolkit.telemetry.integrations.lightning.step_so_far import learning_rates


def hyperparameters(owner: Any) -> dict[str, Any]:
    """Return the hyperparameters of a module or a data module, where it has saved any."""
    return {str(name): value for name, value in dict(getattr(owner, "hparams", None) or {}).items()}


def about_model(pl_module: Any) -> dict[str, Any]:
    """Return what the module is called and how large it is; a size that is not known yet is None."""
    parameters = [*pl_module.parameters()]
    # A lazy layer's have no size before the first batch.
    sizes = [
        (parameter.numel(), parameter.requires_grad)
        for parameter in parameters
        if not hasattr(parameter, "materialize")
    ]
    is_known = len(sizes) == len(parameters)
    return {
        "name": type(pl_module).__name__,
        "architecture": type(pl_module).__name__,
        "total_params": sum(size for size, _ in sizes) if is_known else None,
        "trainable_params": sum(size for size, trains in sizes if trains) if is_known else None,
    }


def about_training(trainer: Any) -> dict[str, Any]:
    """Return what is trained how; what is not known is None and left out of the record."""
    batch_size = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
    accumulated = trainer.accumulate_grad_batches
    is_known = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    schedulers = [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]
    clips_by_norm = getattr(trainer, "gradient_clip_algorithm", None) in (None, "norm")
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return {
        "batch_size": batch_size if is_known else None,
        "gradient_accumulation_steps": accumulated,
        "effective_batch_size": batch_size * accumulated * trainer.world_size if is_known else None,
        "optimizer": ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers) or None,
        "scheduler": ", ".join(schedulers) or None,
        "learning_rate": learning_rates(trainer.optimizers).get("lr"),
        "max_steps": max_steps(trainer),
        "max_epochs": trainer.max_epochs if trainer.max_epochs != -1 else None,
        "max_grad_norm": trainer.gradient_clip_val if clips_by_norm else None,
        "seed": int(seed) if seed.isdecimal() else None,
        **about_hardware(trainer),
    }


def about_hardware(trainer: Any) -> dict[str, Any]:
    """Return what the trainer runs on, also where it only evaluates."""
    return {
        "framework": "lightning",
        "dtype": str(trainer.precision),
        "strategy": type(trainer.strategy).__name__,
        "world_size": trainer.world_size,
    }


def max_steps(trainer: Any) -> int | None:
    """Return after how many steps the training ends at the latest; None where that cannot be said."""
    limits = [] if trainer.max_steps == -1 else [int(trainer.max_steps)]
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    # Steps by hand are as many of a batch as the module likes, and a callback may change the accumulation.
    is_steady = trainer.lightning_module.automatic_optimization and not any(
        hasattr(callback, "going_to_accumulate_grad_batches") for callback in trainer.callbacks
    )
    if is_steady and epochs not in (None, -1) and isinstance(batches, int):
        # An epoch's last batches make a step, too, where they are fewer.
        limits.append(int(-(-batches // trainer.accumulate_grad_batches) * epochs))
    return min(limits, default=None)
