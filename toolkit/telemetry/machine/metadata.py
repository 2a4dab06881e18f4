"""What a training configuration says about its LoRA, its model and its set-up, in the words of the start record.

Only what is written in the configuration is repeated: a key that is not there is absent, for its default is the
trainer's business and may change with the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


def find_process(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the process that a training configuration describes, or an empty mapping where there is none.

    Takes the whole file (`config.process[…]`), its `config` part, or a process itself. Of several processes, the one
    with a `telemetry` block of its own is meant, else the first that trains, else the first.
    """
    inner = _mapping(config.get("config"))
    listed = inner.get("process", config.get("process"))
    if isinstance(listed, Mapping):
        return listed
    if not isinstance(listed, list | tuple):
        return (
            config
            if any(isinstance(config.get(part), Mapping) for part in ("train", "network", "model"))
            else {}
        )
    processes = [process for process in listed if isinstance(process, Mapping)]
    for part in ("telemetry", "train"):
        for process in processes:
            if isinstance(process.get(part), Mapping):
                return process
    return processes[0] if processes else {}


def lora_metadata(network_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `lora_…` fields that a `network` block, or a PEFT configuration, states."""
    inner = _mapping(network_config.get("network_kwargs"))
    return _first_of_each(_LORA, network_config, inner)


def training_metadata(process_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training set-up that a process states: batch, optimizer, schedule, steps, precision.

    `effective_batch_size` is there where batch size and accumulation both are; it does not know of several devices.
    """
    train = _mapping(process_config.get("train"))
    described = _first_of_each(_TRAINING, train, _mapping(train.get("lr_scheduler_params")))
    batch_size, accumulation = described.get("batch_size"), described.get("gradient_accumulation_steps")
    if isinstance(batch_size, int) and isinstance(accumulation, int):
        described["effective_batch_size"] = batch_size * accumulation
    return described


def model_metadata(process_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process states of its base model: name, architecture, quantisation."""
    return _first_of_each(_MODEL, _mapping(process_config.get("model")))


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
    "batch_size": ("batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "gradient_accumulation"),
    "learning_rate": ("lr", "learning_rate"),
    "unet_learning_rate": ("unet_lr",),
    "text_encoder_learning_rate": ("text_encoder_lr",),
    "optimizer": ("optimizer",),
    "scheduler": ("lr_scheduler", "scheduler"),
    "warmup_steps": ("warmup_steps", "lr_warmup_steps", "num_warmup_steps"),
    "max_steps": ("steps", "max_steps"),
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
    """Return each field under its own name, from the first block that has one of its keys with a value."""
    described: dict[str, Any] = {}
    for field, keys in fields.items():
        values = (block[key] for block in blocks for key in keys if block.get(key) is not None)
        for value in values:
            described[field] = value
            break
    return described


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
