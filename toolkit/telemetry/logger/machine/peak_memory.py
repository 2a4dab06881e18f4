"""The peak memory of this process, by the counters of the system and of torch's allocators."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.torch_backends import cuda_in_use

_GB: Final = 1024**3
_TIMEOUT_S: Final = 0.5


def peak_memory(guard: Guard, timeout_s: float = _TIMEOUT_S) -> dict[str, float]:
    """Return `cpu_mem_peak_mb` and `gpu/<index>/mem_peak_gb`, as far as they are known within `timeout_s`.

    Never raises. These are true peaks, not the highest of some samples. No device is asked or woken: the counters are
    in host memory, and torch is looked at only where the script has initialised it.
    """
    found: dict[str, float] = {}
    with guard.catch("reading the peak of the process's memory"):
        found.update(_of_the_process())
    with guard.catch("reading the peak of the GPUs' memory"):
        found.update(_of_torch(guard, timeout_s))
    return found


def _of_the_process() -> dict[str, float]:
    # Linux's own figure: `getrusage` there also counts what a parent held before this program began in its place.
    status = Path("/proc/self/status")
    if status.exists():
        peak_kb = re.search(r"^VmHWM:\s+([0-9]+) kB$", status.read_text("ascii", "replace"), re.MULTILINE)
        return {"cpu_mem_peak_mb": round(int(peak_kb[1]) / 1024, 2)} if peak_kb else {}
    try:
        import resource
    except ImportError:
        # Windows has no such figure; the samples have to do.
        return {}
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return {"cpu_mem_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)}


def _of_torch(guard: Guard, timeout_s: float) -> dict[str, float]:
    cuda = cuda_in_use()
    if cuda is None:
        return {}
    found: dict[str, float] = {}

    def read() -> None:
        with guard.catch("reading the peak of the GPUs' memory"):
            for index in range(cuda.device_count()):
                peak = cuda.memory_stats_as_nested_dict(index)["allocated_bytes"]["all"]["peak"]
                if peak:
                    found[f"gpu/{index}/mem_peak_gb"] = round(peak / _GB, 4)

    # Another thread that hangs in the driver may hold the allocator's lock: then only this thread waits.
    thread = threading.Thread(target=read, name="telemetry-peak-memory", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # No more threads, or the interpreter is at its end: then the samples have to do.
        return {}
    thread.join(timeout_s)
    return dict(found)
