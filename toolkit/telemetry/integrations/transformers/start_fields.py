"""The Trainer's part of the start record: model, adapter and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import __version__ as transformers_version

from toolkit.telemetry.logger.machine.start_fields import module_fields


def model_fields(model: Any) -> dict[str, Any]:
    """Return the model's name, class and size."""
    if model is None:
        return {}
    return module_fields(model, getattr(getattr(model, "config", None), "name_or_path", None))


def lora_fields(model: Any) -> dict[str, Any] | None:
    """Return the configuration of the first adapter of a PEFT model."""
    adapters = getattr(model, "peft_config", None)
    if not isinstance(adapters, Mapping) or not adapters:
        return None
    adapter = next(iter(adapters.values()))
    wanted = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules")
    found = {name: getattr(adapter, name, None) for name in wanted}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}


def training_fields(args: Any, state: Any, model: Any) -> dict[str, Any]:
    """Return how it is trained."""
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else getattr(model, "dtype", None)
    return {
        "batch_size": state.train_batch_size or args.train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "effective_batch_size": samples_per_step(args, state),
        "optimizer": args.optim,
        "scheduler": args.lr_scheduler_type,
        "learning_rate": args.learning_rate,
        "max_steps": state.max_steps,
        "epochs": state.num_train_epochs,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "seed": args.seed,
        "gradient_checkpointing": args.gradient_checkpointing,
        "max_grad_norm": args.max_grad_norm,
        "logging_nan_inf_filter": args.logging_nan_inf_filter,
        "world_size": args.world_size,
        "transformers_version": transformers_version,
    }


def samples_per_step(args: Any, state: Any) -> int:
    """Return the samples of one optimizer step, over all processes."""
    batch = state.train_batch_size or args.train_batch_size
    return int(batch * args.gradient_accumulation_steps * args.world_size)
