from __future__ import annotations

import sys
from types import SimpleNamespace

from tests.telemetry.machine.torch_backend import GIB, Backend
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.torch_memory import TorchMemorySampler


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
