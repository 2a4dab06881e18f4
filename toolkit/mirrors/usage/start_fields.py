"""The properties of a run-start event: the machine, and the configuration of the training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit.runfolder.records import Record
from toolkit.runfolder.untrusted import is_number


def about_machine(start: Record) -> dict[str, Any]:
    """Return the machine's properties from the start record, rounded."""
    cpu, accelerators = start.get("cpu"), start.get("accelerators")
    return {
        **_about_system(start.get("os")),
        "python_version": start.get("python"),
        "package_versions": start.get("packages"),
        "cpu_count": cpu.get("logical") if isinstance(cpu, Mapping) else None,
        "memory_gb": _rounded(start.get("memory_gb")),
        **(_about_accelerators(accelerators) if isinstance(accelerators, list) else {}),
    }


def about_training(start: Record, *, is_public_model: Callable[[str], bool]) -> dict[str, Any]:
    """Return the model, by name only if that is public, and the training configuration from the start record."""
    found: dict[str, Any] = {}
    for name, fields in _TRAINING.items():
        found[name] = next((start[field] for field in fields if start.get(field) is not None), None)
    if found["trainer"] is None and "axolotl_version" in start:
        found["trainer"] = "axolotl"
    names = [start.get(field) for field in ("model_name_or_path", "model_name")]
    found["model"] = next((name for name in names if isinstance(name, str) and is_public_model(name)), None)
    return found


_TRAINING: Final[Mapping[str, tuple[str, ...]]] = {
    "trainer": ("trainer", "framework"),
    "world_size": ("world_size",),
    "architecture": ("model_architecture", "architecture"),
    "total_parameters": ("model_total_params",),
    "trainable_parameters": ("model_trainable_params",),
    "quantize": ("model_quantize", "quantize"),
    "low_vram": ("model_low_vram", "low_vram"),
    "model_dtype": ("model_dtype",),
    "lora_type": ("lora_type",),
    "lora_rank": ("lora_rank",),
    "lora_alpha": ("lora_alpha",),
    "lora_dropout": ("lora_dropout",),
    "lora_conv_rank": ("lora_conv_rank",),
    "lora_conv_alpha": ("lora_conv_alpha",),
    "batch_size": ("batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "gradient_accumulation"),
    "effective_batch_size": ("effective_batch_size",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "max_grad_norm": ("max_grad_norm",),
    "max_steps": ("max_steps",),
    "max_epochs": ("max_epochs", "epochs"),
    "warmup_steps": ("warmup_steps",),
    "learning_rate": ("learning_rate",),
    "optimizer": ("optimizer",),
    "scheduler": ("scheduler",),
    "dtype": ("dtype",),
}
"""Each property with the fields of the start record that may hold it; the first one found counts."""

# Linux-6.1.0-17-amd64-x86_64-with-glibc2.36, macOS-14.4-arm64-arm-64bit, Windows-10-10.0.19045-SP0
_PLATFORM = re.compile(r"(?P<os>[A-Za-z]+)-(?P<version>[0-9]{1,5}(?:\.[0-9]{1,5})?)")
_MACHINE = re.compile(
    r"(?<![A-Za-z0-9_])(?:x86_64|amd64|AMD64|aarch64|arm64|ppc64le|riscv64|s390x)(?![A-Za-z0-9_])"
)


def _about_system(platform: Any) -> dict[str, Any]:
    """Return system, version and kind of processor, without the kernel's own name, which may be private."""
    match = _PLATFORM.match(platform) if isinstance(platform, str) else None
    if match is None:
        return {}
    # The processor comes last: the name of a Debian kernel contains one as well.
    machines = _MACHINE.findall(platform)
    return {"os": match["os"], "os_version": match["version"], "machine": machines[-1] if machines else None}


def _about_accelerators(accelerators: list[Any]) -> dict[str, Any]:
    devices = [device for device in accelerators if isinstance(device, Mapping)]
    if not devices:
        # None was found; there may be one that is visible only once torch uses it.
        return {}
    return {
        "accelerator_type": devices[0].get("kind"),
        "accelerator_count": len(devices),
        "accelerator_models": [device.get("name") for device in devices],
        "accelerator_memory_gb": [_rounded(device.get("memory_gb")) for device in devices],
    }


def _rounded(value: Any) -> int | None:
    return round(value) if is_number(value) and 0 <= value < 1e12 else None
