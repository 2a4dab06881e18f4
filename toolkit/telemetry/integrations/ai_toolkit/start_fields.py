"""ai-toolkit's part of the start record, and the learning rate of its optimizers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.logger.machine.start_fields import (
    lora_fields,
    model_fields,
    parameter_counts,
    training_fields,
)
from toolkit.telemetry.runfolder.records import FIRST_STEP


def samples_per_step(process: Any) -> int:
    """Return how many samples one ai-toolkit step trains on, over all ranks."""
    train = process.train_config
    return int(train.batch_size) * int(train.gradient_accumulation) * find_rank().world_size


def weight_names(process: Any) -> list[str]:
    """Return the prefixes of the weight files it saves."""
    trigger = getattr(getattr(process, "embed_config", None), "trigger", None)
    return [str(process.job.name), *([trigger] if isinstance(trigger, str) and trigger else [])]


def start_fields(process: Any, guard: Guard) -> dict[str, Any]:
    """Return the fields of the start record; unknown ones are left out."""
    config: Mapping[str, Any] = process.config
    model: dict[str, Any] = {**model_fields(config)}
    model.setdefault("name", model.get("model_name_or_path"))
    with guard.catch("naming the model's architecture"):
        model.setdefault("architecture", process.model_config.arch)
    with guard.catch("counting the model's parameters"):
        model["total_params"], _ = parameter_counts(process.sd.unet.parameters())
        model["trainable_params"], _ = parameter_counts(_trained(process.params))
    training: dict[str, Any] = {**training_fields(config)}
    with guard.catch("describing the training"):
        train = process.train_config
        training.update(
            batch_size=train.batch_size,
            gradient_accumulation=train.gradient_accumulation,
            effective_batch_size=samples_per_step(process),
            learning_rate=train.lr,
            optimizer=train.optimizer,
            scheduler=train.lr_scheduler,
            max_steps=train.steps,
            dtype=train.dtype,
        )
        if process.training_seed is not None:
            training["seed"] = process.training_seed
    # Steps are counted as in ai-toolkit's own log and file names.
    training[FIRST_STEP] = 0
    if process.start_step:
        training["resumed_from_step"] = process.start_step
    network = config.get("network")
    return {
        "config": process.job.raw_config,
        "lora": lora_fields(network) if isinstance(network, Mapping) else None,
        "model": model,
        "training": training,
        "trainer": "ai-toolkit",
        "process_type": config.get("type"),
        "save_root": os.path.abspath(process.save_root),
    }


def learning_rate(process: Any) -> tuple[Any, bool]:
    """Return the current learning rate, by the same rules as ai-toolkit's own progress bar, and whether that is slow.

    Some optimizers compute it from their state.
    """
    optimizer = process.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    if hasattr(inner, "get_avg_learning_rate"):
        return inner.get_avg_learning_rate(), True
    if hasattr(inner, "get_learning_rates"):
        return inner.get_learning_rates()[0], True
    first = inner.param_groups[0]
    is_adaptive = str(process.train_config.optimizer).lower().startswith(("dadaptation", "prodigy"))
    return first["d"] * first["lr"] if is_adaptive else first["lr"], False


def _trained(params: Iterable[Any]) -> Iterable[Any]:
    for group in params:
        yield from group["params"] if isinstance(group, Mapping) else (group,)
