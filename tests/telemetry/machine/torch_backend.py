"""Stands for torch.cuda and the counters of its allocator."""

from __future__ import annotations

from types import SimpleNamespace

GIB = 1024**3


class Backend:
    """What torch.cuda answers for devices of `(allocated, reserved, peak)` GiB."""

    def __init__(self, *devices, initialised=True):
        self._devices = devices
        self._initialised = initialised
        self.asked: list[int] = []

    def is_initialized(self):
        return self._initialised

    def device_count(self):
        return len(self._devices)

    def get_device_properties(self, index):
        return SimpleNamespace(name="stand-in", total_memory=16 * GIB)

    def memory_stats_as_nested_dict(self, index):
        self.asked.append(index)
        device = self._devices[index]
        if isinstance(device, Exception):
            raise device
        allocated, reserved, peak = device
        return {
            "allocated_bytes": {"all": {"current": allocated * GIB, "peak": peak * GIB}},
            "reserved_bytes": {"all": {"current": reserved * GIB, "peak": reserved * GIB}},
        }
