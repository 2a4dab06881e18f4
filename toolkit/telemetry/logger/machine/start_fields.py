"""What the start record says about the model, its LoRA and the training, from a configuration or from the model.

A configuration is only repeated: a missing key is absent from the record, because its default belongs to the trainer
and may change with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final


def lora_fields(network_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `lora_…` fields of a `network` block or a PEFT configuration."""
    inner = _mapping(network_config.get("network_kwargs"))
    return _first_of_each(_LORA, network_config, inner)


def training_fields(process_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training setup of a process; `effective_batch_size`, if known, does not count several devices."""
    train = _mapping(process_config.get("train"))
    described = _first_of_each(_TRAINING, train, _mapping(train.get("lr_scheduler_params")))
    batch_size, accumulation = described.get("batch_size"), described.get("gradient_accumulation_steps")
    if isinstance(batch_size, int) and isinstance(accumulation, int):
        described["effective_batch_size"] = batch_size * accumulation
    return described


def model_fields(process_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process states about its base model: name, architecture, quantisation."""
    return _first_of_each(_MODEL, _mapping(process_config.get("model")))


def module_fields(module: Any, name: str | None = None) -> dict[str, Any]:
    """Return the name, class and size of a torch module."""
    architecture = type(module).__name__
    total, trainable = parameter_counts(module.parameters())
    return {
        "name": name or architecture,
        "architecture": architecture,
        "total_params": total,
        "trainable_params": trainable,
    }


def parameter_counts(parameters: Iterable[Any]) -> tuple[int | None, int | None]:
    """Return how many values the parameters have, and how many of those are trained; None if a size is unknown."""
    total = trainable = 0
    for parameter in parameters:
        if hasattr(parameter, "materialize"):
            # A lazy layer's parameters have no size before the first batch.
            return None, None
        # DeepSpeed leaves an empty tensor if a parameter is spread over the ranks.
        size = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
        total += size
        trainable += size if getattr(parameter, "requires_grad", True) else 0
    return total, trainable


_LORA: Final = {
    "lora_type": ("type", "peft_type"),
    "lora_rank": ("linear", "rank", "r", "lora_rank"),
    "lora_alpha": ("linear_alpha", "alpha", "lora_alpha"),
    "lora_conv_rank": ("conv", "conv_rank"),
    "lora_conv_alpha": ("conv_alpha",),
    "lora_dropout": ("dropout", "lora_dropout"),
    "lora_target_modules": ("only_if_contains", "target_modules", "lora_target_modules"),
    "lora_ignore_modules": ("ignore_if_contains", "exclude_modules"),
}

_TRAINING: Final = {
    "batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "gradient_accumulation"),
    "learning_rate": ("lr", "learning_rate"),
    "unet_learning_rate": ("unet_lr",),
    "text_encoder_learning_rate": ("text_encoder_lr",),
    "optimizer": ("optimizer", "optim"),
    "scheduler": ("lr_scheduler", "scheduler", "lr_scheduler_type"),
    "warmup_steps": ("warmup_steps", "lr_warmup_steps", "num_warmup_steps"),
    "max_steps": ("steps", "max_steps", "max_train_steps", "num_training_steps"),
    "dtype": ("dtype",),
    "max_grad_norm": ("max_grad_norm",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "noise_scheduler": ("noise_scheduler",),
    "seed": ("seed",),
}

_MODEL: Final = {
    "model_name_or_path": ("name_or_path", "model_name_or_path"),
    "architecture": ("arch", "architecture"),
    "is_flux": ("is_flux",),
    "is_sdxl": ("is_xl", "is_sdxl"),
    "is_v2": ("is_v2",),
    "is_v3": ("is_v3",),
    "quantize": ("quantize",),
    "quantize_type": ("qtype",),
    "low_vram": ("low_vram",),
    "model_dtype": ("dtype",),
}


def _first_of_each(fields: Mapping[str, tuple[str, ...]], *blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Return each field from the first block that has a value for one of its keys."""
    described: dict[str, Any] = {}
    for field, keys in fields.items():
        values = (block[key] for block in blocks for key in keys if block.get(key) is not None)
        for value in values:
            described[field] = value
            break
    return described


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
