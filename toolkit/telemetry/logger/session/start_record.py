"""The start record: what is trained, how, with what, and on which machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.core.config_mapping import mapping_in, resolved
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.start_fields import lora_fields, model_fields, training_fields
from toolkit.telemetry.logger.options import find_process
from toolkit.telemetry.logger.records.device_scalars import DeviceScalars
from toolkit.telemetry.logger.records.plain_values import PlainValues, number_in
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.runfolder.codec import bounded
from toolkit.telemetry.runfolder.records import OF_THE_JOB, well_known
from toolkit.telemetry.runfolder.untrusted import is_number

_NUMBERS: Final = frozenset(
    {
        *("lora_rank", "lora_alpha", "lora_conv_rank", "lora_conv_alpha", "lora_dropout"),
        *("batch_size", "gradient_accumulation_steps", "effective_batch_size", "max_steps", "warmup_steps"),
        *("learning_rate", "unet_learning_rate", "text_encoder_learning_rate", "max_grad_norm", "seed"),
        *("first_step", "resumed_from_step", "world_size", "epochs", "max_epochs"),
        *("model_total_params", "model_trainable_params", "total_params", "trainable_params"),
        *("job_array_task", "job_restarts", "job_start_time", "job_end_time"),
    }
)
_LISTS: Final = frozenset({"lora_target_modules", "lora_ignore_modules"})
"""A LoRA's layers are a list, or one pattern."""

_MUCH: Final = 48_000
"""Characters of a start record from which on the 64 KiB of a record may be too few."""


def start_fields(
    *,
    run_name: str,
    config: Any,
    lora: Any = None,
    model: Any = None,
    training: Any = None,
    guard: Guard | None = None,
    values: PlainValues | None = None,
) -> dict[str, Any]:
    """Return the fields of a start record, plain, secrets masked; what the caller does not say is in the config.

    `lora`, `model` and `training` are mappings or dataclasses; of anything else there is a note.
    """
    guard = guard or Guard()
    values = values or PlainValues(guard, DeviceScalars())
    fields: dict[str, Any] = {"run_name": run_name}
    # A configuration may be a class of the caller's that raises for what it does not have.
    with guard.catch("reading the configuration"):
        config = resolved(config)
        found = mapping_in(config)
        config = config if found is None else values.tree(dict(found))
        fields.update(_stated_in({} if found is None else config))
    about_lora = _as_mapping("lora", lora)
    fields |= {**lora_fields(about_lora), **_prefixed("lora_", about_lora)}
    fields |= _prefixed("model_", _as_mapping("model", model))
    fields |= {_name(name): value for name, value in _as_mapping("training", training).items()}
    if config is not None:
        fields["config"] = config
    # Made plain first: what is endless, or raises when it is looked at, is neither once it is masked.
    masker = Masker()
    masked: dict[str, Any] = masker.mask(bounded(values.tree(fields), masker.cut))
    return of_one_type(masked)


def with_room(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the well-known packages alone where all would push the configuration out."""
    packages = fields.get("packages")
    if not isinstance(packages, dict) or len(repr(fields)) < _MUCH:
        return fields
    known = well_known(packages)
    return {**fields, "packages": known, "packages_left_out": len(packages) - len(known)}


def job_fields(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the scheduler's variables say about the job. No scheduler is asked: that may take seconds."""
    found = {name: [environ[key] for key in keys if environ.get(key)] for name, keys in OF_THE_JOB.items()}
    return {name: values[0] for name, values in found.items() if values}


def _stated_in(config: Mapping[str, Any]) -> dict[str, Any]:
    process = find_process(config) or {}
    network = process.get("network")
    return {
        **lora_fields(network if isinstance(network, Mapping) else {}),
        **model_fields(process),
        **training_fields(process),
    }


def of_one_type(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with a number where a number belongs, however it was written: YAML takes `2e-3` for a text.

    What is no number at all, such as `auto`, is kept under `x_<name>`.
    """
    typed: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _NUMBERS and not _is_number(value):
            number = number_in(value) if isinstance(value, str) else None
            is_one = _is_number(number) and math.isfinite(number)  # type: ignore[arg-type]
            typed[name if is_one else f"x_{name}"] = number if is_one else value
        elif name in _LISTS and isinstance(value, str):
            typed[name] = [value]
        else:
            typed[name] = value
    return {name: value for name, value in typed.items() if value is not None}


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return True
    # JSON has no room for a larger integer: it would be written as text.
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64


def samples_per_step(fields: Mapping[str, Any]) -> float | None:
    """Return how many samples a step trains on, where the start record's fields say so."""
    effective = _count(fields.get("effective_batch_size"))
    if effective is not None:
        return effective
    batch, accumulation = (
        _count(fields.get("batch_size")),
        _count(fields.get("gradient_accumulation_steps", 1)),
    )
    return None if batch is None or accumulation is None else batch * accumulation


def _count(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 < value < 1e15 else None


def _as_mapping(name: str, given: Any) -> Mapping[str, Any]:
    if given is None or isinstance(given, Mapping):
        return given or {}
    found = mapping_in(resolved(given))
    return {name: given} if found is None else found


def _prefixed(prefix: str, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {key: _name(key) for key in given}
    return {
        name if name.startswith(prefix) or name == prefix.rstrip("_") else f"{prefix}{name}": given[key]
        for key, name in names.items()
    }


def _name(key: Any) -> str:
    return str(key) if key is None or isinstance(key, (str, int, float)) else f"<{type(key).__name__}>"
