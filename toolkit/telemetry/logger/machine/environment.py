"""The machine, the software and the code that a run is made with."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.ranks import find_rank
from toolkit.telemetry.logger.machine.ask_program import answer_of
from toolkit.telemetry.logger.machine.own_code import code_files
from toolkit.telemetry.logger.machine.repository import describe_repository
from toolkit.telemetry.logger.machine.samplers.nvml import opened_nvml
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample
from toolkit.telemetry.logger.machine.samplers.visible_gpus import gpus_as_torch_counts, visible_gpus
from toolkit.telemetry.logger.machine.software import cuda_version, cudnn_version, installed_packages
from toolkit.telemetry.logger.machine.torch_backends import cuda_in_use, mps_in_use
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder.process import boot_id, host_name, process_began

_GB: Final = 1024**3


def describe_environment(guard: Guard | None = None, found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what can be said about where this process runs, which is put into `found` part by part, drivers last.

    Each part fails alone: what failed is left out and given to `guard`; until the last one has answered, those that
    have not are named under `unanswered`. Torch is asked only where the training script has imported and initialised
    it; nothing is imported or initialised for it. Secrets in the command line and in the remote's address are masked.
    """
    guard, found = guard or Guard(), {} if found is None else found
    found["unanswered"] = unanswered = list(_PARTS)
    for part, find in _PARTS.items():
        with guard.catch(f"describing the environment ({part})"):
            answer = find()
            if answer is not None:
                found[part] = answer
        unanswered.remove(part)
    del found["unanswered"]
    return found


def _system() -> str:
    if sys.platform != "linux":
        return platform.platform()
    # The same text; `platform.platform` starts a process, `uname -p`, for it.
    system = platform.uname()
    return f"{system.system}-{system.release}-{system.machine}-with-{''.join(platform.libc_ver())}"


def _cpu() -> dict[str, Any]:
    import psutil

    described: dict[str, Any] = {"logical": os.cpu_count(), "physical": psutil.cpu_count(logical=False)}
    if hasattr(os, "sched_getaffinity"):
        described["usable"] = len(os.sched_getaffinity(0))
    described["model"] = _cpu_model()
    return {name: value for name, value in described.items() if value is not None}


def _cpu_model() -> str | None:
    if sys.platform == "darwin":
        asked = answer_of("sysctl", "-n", "machdep.cpu.brand_string", timeout_s=2.0)
        return None if asked is None else asked.strip()
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.machine() or None
    match = re.search(r"^(?:model name|Model|Hardware|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine() or None


def _memory_gb() -> float:
    import psutil

    return round(psutil.virtual_memory().total / _GB, 2)


def this_process_began() -> float:
    """Return the wall time at which this process began."""
    began = process_began(os.getpid())
    if began is None:
        # macOS and Windows keep the start itself, and not a time since the boot.
        import psutil

        began = psutil.Process().create_time()
    return round(began, 3)


def _accelerators() -> list[dict[str, Any]]:
    return _nvidia_accelerators() or _torch_accelerators()


def _driver() -> str | None:
    with suppress(NothingToSample), opened_nvml() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion())
    return None


def _nvidia_accelerators() -> list[dict[str, Any]]:
    with suppress(NothingToSample), opened_nvml() as nvml:
        return [
            {
                "index": gpu.index,
                "name": _text(nvml.nvmlDeviceGetName(gpu.board)),
                "memory_gb": round(nvml.nvmlDeviceGetMemoryInfo(gpu.device).total / _GB, 2),
                "kind": "cuda",
            }
            for gpu in gpus_as_torch_counts(nvml) or visible_gpus(nvml, os.environ)
        ]
    return []


def _torch_accelerators() -> list[dict[str, Any]]:
    """Describe what torch computes on, where it already does."""
    cuda, mps = cuda_in_use(), mps_in_use()
    if cuda is not None:
        # Torch, imported by the script, calls AMD's GPUs CUDA too; its version alone tells them apart.
        kind = "rocm" if getattr(sys.modules["torch"].version, "hip", None) else "cuda"
        all_properties = map(cuda.get_device_properties, range(cuda.device_count()))
        devices = [(properties.name, properties.total_memory, kind) for properties in all_properties]
    else:
        is_apple = mps is not None
        devices = [(_cpu_model() or "Apple GPU", mps.recommended_max_memory(), "mps")] if is_apple else []
    return [
        {"index": index, "name": name, "memory_gb": round(memory / _GB, 2), "kind": kind}
        for index, (name, memory, kind) in enumerate(devices)
    ]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_PARTS: Final[dict[str, Callable[[], Any]]] = {
    "host": host_name,
    "os": _system,
    "python": platform.python_version,
    "packages": installed_packages,
    "cuda": cuda_version,
    "cudnn": cudnn_version,
    "cpu": _cpu,
    "memory_gb": _memory_gb,
    "git": describe_repository,
    "code_files": lambda: code_files() if find_rank().world_size > 1 else None,
    "command_line": lambda: mask_secrets({"argv": list(sys.argv)})["argv"],
    "pid": os.getpid,
    "boot_id": boot_id,
    "process_started": this_process_began,
    "driver": _driver,
    "accelerators": _accelerators,
}
