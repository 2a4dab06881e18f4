"""What is said of memory where it ran out, from files of the kernel's and the counters of torch."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.out_of_memory import is_out_of_memory, memory_state


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
        (OSError(2, "No such file"), False),
        (RuntimeError(), False),
        (RuntimeError(7), False),
    ],
)
def test_out_of_memory_errors_are_recognised(error, expected):
    assert is_out_of_memory(error) is expected


@pytest.fixture
def kernel(tmp_path):
    """Make files as the kernel shows them."""
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroup.mkdir()
    return proc, cgroup


def state(kernel, error=None):
    guard = Guard()
    found = memory_state(error or MemoryError(), guard, proc=kernel[0], cgroup=kernel[1])
    assert guard.total == 0
    return found


def test_the_process_and_the_machine(kernel):
    found = state(kernel)

    assert 1 < found["rss_mb"] < found["virtual_mb"]
    assert found["rss_mb"] < found["ram_total_mb"] > found["ram_available_mb"]
    assert "cgroup_limit_mb" not in found


def test_the_limit_of_a_control_group_of_its_own(kernel):
    proc, cgroup = kernel
    (proc / "self" / "cgroup").write_text("0::/system.slice/job_7\n")
    group = cgroup / "system.slice" / "job_7"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{512 << 20}\n")
    (group / "memory.current").write_text(f"{500 << 20}\n")
    (cgroup / "memory.max").write_text("max\n")

    assert (state(kernel)["cgroup_limit_mb"], state(kernel)["cgroup_used_mb"]) == (512.0, 500.0)


def test_the_limit_of_a_container_by_the_first_version_of_control_groups(kernel):
    proc, cgroup = kernel
    (proc / "self" / "cgroup").write_text("11:cpu:/x\n4:memory:/docker/abc\n")
    (cgroup / "memory").mkdir()
    (cgroup / "memory" / "memory.limit_in_bytes").write_text(str(256 << 20))

    assert state(kernel)["cgroup_limit_mb"] == 256.0


GIB = 1024**3


@pytest.fixture
def cuda(monkeypatch):
    """Stand in for torch's module of a device with 8 GiB, of which 4 are torch's."""
    counters = {
        "allocated_bytes": {"all": {"current": 3 * GIB, "peak": 5 * GIB}},
        "reserved_bytes": {"all": {"current": 4 * GIB}},
    }
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda index: counters,
        mem_get_info=lambda: (2 * GIB, 8 * GIB),
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    return cuda


def test_a_device_is_reported_by_torch_s_counters_and_what_is_free_on_it(kernel, cuda):
    found = state(kernel, OutOfMemoryError("CUDA out of memory"))

    assert (found["gpu_mem_allocated"], found["gpu_mem_reserved"], found["gpu_mem_peak"]) == (3.0, 4.0, 5.0)
    assert (found["gpu_mem_free"], found["gpu_mem_total"]) == (2.0, 8.0)


def test_an_unused_device_is_not_woken(kernel, cuda):
    cuda.is_initialized = lambda: False
    cuda.mem_get_info = lambda: pytest.fail("asked")

    assert not [name for name in state(kernel, OutOfMemoryError()) if name.startswith("gpu")]


def test_a_driver_that_fails_loses_only_its_own_figure(kernel, cuda):
    def fail():
        raise RuntimeError("CUDA error: unspecified launch failure")

    cuda.mem_get_info = fail
    guard = Guard()
    found = memory_state(OutOfMemoryError(), guard, proc=kernel[0], cgroup=kernel[1])

    assert found["gpu_mem_allocated"] == 3.0
    assert found["rss_mb"] > 1
    assert guard.total == 1
