"""What is said of memory where it ran out, from files of the kernel's and the counters of torch."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.errors.memory import is_out_of_memory, memory_state


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


@pytest.mark.parametrize("is_initialized", [True, False])
def test_a_device_is_reported_by_torch_s_counters_and_an_unused_one_is_not_woken(monkeypatch, is_initialized):
    counters = {
        "allocated_bytes": {"all": {"current": 3 << 30, "peak": 5 << 30}},
        "reserved_bytes": {"all": {"current": 4 << 30}},
    }
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        device_count=lambda: 1,
        memory_stats_as_nested_dict=lambda index: counters,
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    found = {name: value for name, value in memory_state(Guard()).items() if name.startswith("gpu")}

    expected = {"gpu_mem_allocated": 3.0, "gpu_mem_reserved": 4.0, "gpu_mem_peak": 5.0}
    assert found == (expected if is_initialized else {})
