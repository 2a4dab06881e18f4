"""The state of memory when it ran out: of the device, of the process, and its limits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.torch_memory import TorchMemorySampler
from toolkit.telemetry.logger.machine.torch_backends import cuda_in_use

_MB: Final = 1024**2
_GB: Final = 1024**3
_OUT_OF_MEMORY: Final = ("out of memory", "cannot allocate memory", "alloc_failed")
_MAX_LINES: Final = 200
_NO_LIMIT: Final = 2**60
"""Groups without a limit report the largest possible number, rounded to a page."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` means that memory ran out, of the host or of a device."""
    kind = type(error)
    if isinstance(error, MemoryError) or kind.__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    # Older versions of torch, and libraries below it, raise a RuntimeError with such a message.
    first = error.args[0] if error.args and type(error.args[0]) is str else ""
    text = first if isinstance(error, RuntimeError) else str(error.strerror or "")
    return any(words in text[:2_000].lower() for words in _OUT_OF_MEMORY)


def memory_state(
    error: BaseException,
    guard: Guard,
    *,
    proc: Path = Path("/proc"),
    cgroup: Path = Path("/sys/fs/cgroup"),
) -> dict[str, Any]:
    """Return the state of memory now, of the host in MiB, of devices in GiB. Does not wait for a device."""
    found: dict[str, Any] = {}
    with guard.catch("reading the memory of devices"):
        found.update(TorchMemorySampler(guard=guard).sample())
    if not isinstance(error, MemoryError):
        with guard.catch("reading the free memory of a device"):
            found.update(_free_on_device())
    readings: tuple[Callable[[], dict[str, Any]], ...] = (
        _of_host,
        lambda: _of_group(proc, cgroup),
        _of_limits,
    )
    for read in readings:
        with guard.catch("reading the memory of the host"):
            found.update(read())
    return found


def _free_on_device() -> dict[str, Any]:
    """Return the free memory of the current device; torch has just asked the driver the same."""
    cuda = cuda_in_use()
    if cuda is None:
        return {}
    free, total = cuda.mem_get_info()
    return {"gpu_mem_free": round(free / _GB, 4), "gpu_mem_total": round(total / _GB, 4)}


def _of_host() -> dict[str, Any]:
    import psutil

    process, machine = psutil.Process().memory_info(), psutil.virtual_memory()
    found = {
        "rss_mb": process.rss,
        "virtual_mb": process.vms,
        "ram_total_mb": machine.total,
        "ram_available_mb": machine.available,
    }
    return {name: round(size / _MB, 1) for name, size in found.items()}


def _of_group(proc: Path, cgroup: Path) -> dict[str, Any]:
    """Return the limit of the process's control group: that of a container, or of a cluster's job."""
    within = ""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers in ("", "memory"):
            within = path.strip("/")
    found: dict[str, Any] = {}
    # The second version of control groups, then the first; a container sees its own group as the root.
    for folder, limit, used in (
        (cgroup, "memory.max", "memory.current"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for place in (folder / within, folder):
            for name, file in (("cgroup_limit_mb", limit), ("cgroup_used_mb", used)):
                text = next(iter(_lines(place / file)), "")
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    found.setdefault(name, round(int(text) / _MB, 1))
    return found if "cgroup_limit_mb" in found else {}


def _of_limits() -> dict[str, Any]:
    if sys.platform == "win32":
        return {}
    import resource

    limits = {"address_space_limit_mb": resource.RLIMIT_AS, "data_limit_mb": resource.RLIMIT_DATA}
    stated = {name: resource.getrlimit(number)[0] for name, number in limits.items()}
    return {name: round(limit / _MB, 1) for name, limit in stated.items() if limit != resource.RLIM_INFINITY}


def _lines(path: Path) -> list[str]:
    """Return the lines of a kernel file; an empty list if there is no such file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line, _ in zip(file, range(_MAX_LINES), strict=False)]
    except OSError:
        return []
