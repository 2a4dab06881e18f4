"""The samplers. A new one is a file beside this one and a line in `SAMPLERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from toolkit.core.guard import Guard
from toolkit.telemetry.machine.samplers.disk import DiskSampler
from toolkit.telemetry.machine.samplers.host import HostSampler
from toolkit.telemetry.machine.samplers.nvml import NvmlSampler, import_where_there_are_gpus
from toolkit.telemetry.machine.samplers.sampler import Sampler
from toolkit.telemetry.machine.samplers.torch_memory import TorchMemorySampler

SAMPLERS: Final[tuple[Callable[[Path, Guard], Sampler], ...]] = (
    lambda _, guard: HostSampler(guard=guard),
    lambda log_dir, _: DiskSampler(log_dir),
    lambda _, guard: NvmlSampler(guard=guard),
    lambda _, guard: TorchMemorySampler(guard=guard),
)
"""Each makes a sampler from the log directory and the run's guard."""


def default_samplers(log_dir: Path, guard: Guard | None = None) -> list[Sampler]:
    """Return one sampler of each kind; making them reads nothing."""
    guard = guard or Guard()
    with guard.catch("importing NVML"):
        import_where_there_are_gpus()
    return [make(log_dir, guard) for make in SAMPLERS]
