"""What torch's own allocators hold, asked without waking the device."""

from __future__ import annotations

from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.safe_reads import SafeReads
from toolkit.telemetry.logger.machine.samplers.sampler import Sample, Value
from toolkit.telemetry.logger.machine.torch_backends import cuda_in_use, mps_in_use

_GB: Final = 1024**3


class TorchMemorySampler:
    """Reads the counters of torch's caching allocators, in GiB.

    Torch is never imported and no device is ever initialised: until the training script has done both, a sample is
    empty. The counters live in host memory, so reading them neither calls the driver nor waits for the device.
    """

    name = "torch"

    def __init__(self, *, guard: Guard | None = None) -> None:
        self._guard = guard or Guard()
        self._readings = SafeReads(self._guard)
        self._unreadable: set[int] = set()

    def sample(self) -> Sample:
        """Return the first device's memory; of several devices also `gpu/<index>/mem_allocated_gb` and the like."""
        cuda = cuda_in_use()
        devices = {} if cuda is None else self._read_devices(cuda)
        if not devices:
            return self._read_mps()
        in_use = {index: device for index, device in devices.items() if device["mem_reserved"]} or devices
        values: dict[str, Value] = {
            f"gpu_{name}": value for name, value in next(iter(in_use.values())).items()
        }
        if len(in_use) > 1:
            for index, device in in_use.items():
                values[f"gpu/{index}/mem_allocated_gb"] = device["mem_allocated"]
                values[f"gpu/{index}/mem_reserved_gb"] = device["mem_reserved"]
        return values

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read_devices(self, cuda: Any) -> dict[int, dict[str, float]]:
        devices = {}
        for index in range(cuda.device_count()):
            if index in self._unreadable:
                continue
            # An allocator of the user's own may keep no counters: that is said once, and it is not asked again.
            self._unreadable.add(index)
            with self._guard.catch(f"reading the memory of torch.cuda device {index}"):
                # One call: `memory_allocated` and its siblings build the whole tree of counters for each number.
                counters = cuda.memory_stats_as_nested_dict(index)
                allocated, reserved = (counters[f"{name}_bytes"]["all"] for name in ("allocated", "reserved"))
                devices[index] = {
                    "mem_allocated": _gb(allocated["current"]),
                    "mem_reserved": _gb(reserved["current"]),
                    "mem_peak": _gb(allocated["peak"]),
                }
                self._unreadable.discard(index)
        return devices

    def _read_mps(self) -> Sample:
        mps = mps_in_use()
        values: dict[str, Value] = {}
        if mps is None:
            return values
        self._readings.take(values, "gpu_mem_allocated", lambda: _gb(mps.current_allocated_memory()))
        self._readings.take(values, "gpu_mem_reserved", lambda: _gb(mps.driver_allocated_memory()))
        return values


def _gb(count: int) -> float:
    return round(count / _GB, 4)
