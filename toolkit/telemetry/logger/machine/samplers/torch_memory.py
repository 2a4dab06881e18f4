"""What torch's own allocators hold, asked without waking the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.safe_reads import SafeReads
from toolkit.telemetry.logger.machine.samplers.sampler import Sample, Value
from toolkit.telemetry.logger.machine.torch_backends import backends_in_use, mps_in_use

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
        self._unreadable: set[str] = set()

    def sample(self) -> Sample:
        """Return the first device's memory; of several devices also `gpu/<index>/mem_allocated_gb` and the like."""
        for kind, backend in backends_in_use():
            devices = self._read_devices(kind, backend)
            if devices:
                break
        else:
            return self._read_mps()
        in_use = [device for device in devices if device.reserved] or devices[:1]
        first = in_use[0]
        values: dict[str, Value] = {
            "gpu_mem_allocated": first.allocated,
            "gpu_mem_reserved": first.reserved,
            "gpu_mem_peak": first.peak,
        }
        if len(in_use) > 1:
            for device in in_use:
                values[f"gpu/{device.index}/mem_allocated_gb"] = device.allocated
                values[f"gpu/{device.index}/mem_reserved_gb"] = device.reserved
        return values

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _read_devices(self, kind: str, backend: Any) -> list[_DeviceMemory]:
        devices = []
        for index in range(backend.device_count()):
            device = f"torch.{kind} device {index}"
            if device in self._unreadable:
                continue
            # An allocator of the user's own may keep no counters: that is said once, and it is not asked again.
            self._unreadable.add(device)
            with self._guard.catch(f"reading the memory of {device}"):
                # One call: `memory_allocated` and its siblings build the whole tree of counters for each number.
                devices.append(_device_memory(index, backend.memory_stats_as_nested_dict(index)))
                self._unreadable.discard(device)
        return devices

    def _read_mps(self) -> Sample:
        mps = mps_in_use()
        values: dict[str, Value] = {}
        if mps is None:
            return values
        self._readings.take(values, "gpu_mem_allocated", lambda: _gb(mps.current_allocated_memory()))
        self._readings.take(values, "gpu_mem_reserved", lambda: _gb(mps.driver_allocated_memory()))
        return values


@dataclass(frozen=True, slots=True)
class _DeviceMemory:
    index: int
    allocated: float
    reserved: float
    peak: float


def _device_memory(index: int, counters: Any) -> _DeviceMemory:
    allocated = counters["allocated_bytes"]["all"]
    return _DeviceMemory(
        index=index,
        allocated=_gb(allocated["current"]),
        reserved=_gb(counters["reserved_bytes"]["all"]["current"]),
        peak=_gb(allocated["peak"]),
    )


def _gb(count: int) -> float:
    return round(count / _GB, 4)
