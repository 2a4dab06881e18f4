"""What Intel's program `xpu-smi` says of GPUs. Written after the sources of 1.3 and 2.0; not tried on hardware."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any, Final

from toolkit.telemetry.machine.ask_program import Question
from toolkit.telemetry.machine.samplers.safe_reads import plausible
from toolkit.telemetry.machine.samplers.sampler import NothingToSample, Sample, Value

_DRIVERS: Final = ("/sys/module/xe", "/sys/module/i915")
_LIMIT_S: Final = 10.0
_MOST_GPUS: Final = 64
# Names in xpu-smi 1 and 2, how the values of tiles make that of a GPU, the divisor, and the highest in their unit.
_FIELDS: Final[dict[str, tuple[str, str, str, Callable[[list[float]], float], int, float]]] = {
    "util": ("GPU_UTILIZATION", "utilization", "gpu_percent", fmean, 1, 100.0),
    "mem_used_gb": ("MEMORY_USED", "memory", "used_mib", sum, 1024, 1024.0**3),
    "power_w": ("POWER", "power", "gpu_power_w", sum, 1, 20_000.0),
    "temp_c": ("GPU_CORE_TEMPERATURE", "temperature", "gpu_core_celsius", max, 1, 150.0),
    "sm_clock_mhz": ("GPU_FREQUENCY", "frequency", "gpu_frequency_mhz", max, 1, 20_000.0),
}


def has_intel_gpus() -> bool:
    """Return whether a driver of Intel's GPUs is loaded; nothing is started."""
    return any(map(os.path.exists, _DRIVERS))


class IntelSampler:
    """Asks `xpu-smi`: percent, GiB, W, °C and MHz of each GPU, under the names that NVIDIA's have."""

    name = "xpu-smi"

    def __init__(self) -> None:
        self._count = 0

    def sample(self) -> Sample:
        """Return `gpu/<index>/<metric>` by the numbers of xpu-smi; `gpu_util` where there is one GPU."""
        self._count = self._count or next((gpu for gpu in range(_MOST_GPUS) if not _ask([gpu])), _MOST_GPUS)
        if not self._count:
            raise NothingToSample("xpu-smi knows no GPU")
        values: dict[str, Value] = {}
        for index, said in _ask(range(self._count)).items():
            for name, (kind, part, key, combine, divisor, highest) in _FIELDS.items():
                found = _readings(said, f"XPUM_STATS_{kind}", part, key)
                if found and all(plausible(one, highest) is not None for one in found):
                    values[f"gpu/{index}/{name}"] = round(combine(found) / divisor, 3)
        alone = values.get("gpu/0/util") if self._count == 1 else None
        return values if alone is None else {**values, "gpu_util": alone}

    def close(self) -> None:
        """Do nothing: each program has ended."""


def _ask(gpus: Iterable[int]) -> dict[int, dict[str, Any]]:
    # With the mask, which is for computing, it would count the GPUs in another way.
    environ = {name: value for name, value in os.environ.items() if name != "ZE_AFFINITY_MASK"}
    try:
        asked = {gpu: Question("xpu-smi", "stats", "-d", str(gpu), "-j", environ=environ) for gpu in gpus}
    except OSError as error:
        raise NothingToSample("xpu-smi is not installed") from error
    deadline = time.monotonic() + _LIMIT_S
    said = {gpu: json.loads(question.answer(deadline) or "{}") for gpu, question in asked.items()}
    return {gpu: answer for gpu, answer in said.items() if answer and "error" not in answer}


def _readings(said: dict[str, Any], kind: str, part: str, key: str) -> list[Any]:
    """Return what is said of the GPU, else of each tile."""
    if "device_level" not in said:
        of_tiles = said.get(part, {}).get(key, {}).values()
        return [tile["current"] if isinstance(tile, dict) else tile for tile in of_tiles]
    tiles = [one for tile in said.get("tile_level", ()) for one in tile["data_list"]]
    levels = (said["device_level"], tiles)
    found = ([one["value"] for one in level if one["metrics_type"] == kind] for level in levels)
    return next(filter(None, found), [])
