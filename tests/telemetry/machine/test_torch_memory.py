from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.torch_memory import TorchMemorySampler

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


def test_the_first_device_in_use_gives_the_two_fields_of_a_step(monkeypatch):
    backend = Backend((0, 0, 0), (1.5, 2, 3))
    monkeypatch.setitem(sys.modules, "torch.cuda", backend)

    sample = TorchMemorySampler().sample()

    assert sample == {"gpu_mem_allocated": 1.5, "gpu_mem_reserved": 2.0, "gpu_mem_peak": 3.0}
    assert backend.asked == [0, 1], "one look at each device"


def test_several_devices_in_use_are_kept_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.cuda", Backend((1, 2, 3), (4, 5, 6)))

    sample = TorchMemorySampler().sample()

    assert sample["gpu_mem_allocated"] == 1
    assert sample["gpu/1/mem_allocated_gb"] == 4
    assert sample["gpu/1/mem_reserved_gb"] == 5


def test_a_device_that_is_not_initialised_is_left_alone(monkeypatch):
    backend = Backend((1, 2, 3), initialised=False)
    monkeypatch.setitem(sys.modules, "torch.cuda", backend)

    assert TorchMemorySampler().sample() == {}
    assert backend.asked == []


def test_a_module_that_is_still_being_imported_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace())

    assert TorchMemorySampler().sample() == {}


def test_an_allocator_without_counters_is_reported_once_and_not_asked_again(monkeypatch):
    guard = Guard()
    backend = Backend(RuntimeError("the pluggable allocator keeps no statistics"), (1, 2, 3))
    monkeypatch.setitem(sys.modules, "torch.cuda", backend)
    sampler = TorchMemorySampler(guard=guard)

    samples = [sampler.sample() for _ in range(3)]

    assert samples[2]["gpu_mem_allocated"] == 1
    assert backend.asked == [0, 1, 1, 1]
    assert guard.total == 1


def test_apple_devices_are_read_through_mps(monkeypatch):
    mps = SimpleNamespace(current_allocated_memory=lambda: 2 * GIB, driver_allocated_memory=lambda: 3 * GIB)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.mps", mps)
    monkeypatch.setitem(sys.modules, "torch.backends.mps", SimpleNamespace(is_available=lambda: True))

    assert TorchMemorySampler().sample() == {"gpu_mem_allocated": 2.0, "gpu_mem_reserved": 3.0}


def test_nothing_heavy_is_imported_by_the_samplers_modules():
    script = (
        "import sys, toolkit.telemetry.logger.machine.samplers.sampling, toolkit.telemetry.logger.machine.environment,"
        " toolkit.telemetry.logger.machine.start_fields,"
        " toolkit.telemetry.mirrors.tensorboard, toolkit.telemetry.mirrors.wandb;"
        "heavy = {'torch', 'numpy', 'pandas', 'psutil', 'pynvml', 'wandb', 'tensorboard'};"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
