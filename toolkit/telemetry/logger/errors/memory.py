"""The state of memory when it ran out: of the device, of the process, and its limits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.torch_memory import TorchMemorySampler

_MB: Final = 1024**2
_OUT_OF_MEMORY: Final = ("out of memory", "cannot allocate memory", "alloc_failed")
_MAX_LINES: Final = 200


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


def memory_state(guard: Guard, *, proc: Path = Path("/proc")) -> dict[str, Any]:
    """Return the state of memory now, of the host in MiB, of devices in GiB. Asks no driver, waits for no device."""
    found: dict[str, Any] = {}
    with guard.catch("reading the memory of devices"):
        found.update(TorchMemorySampler(guard=guard).sample())
    with guard.catch("reading the memory of the host"):
        found |= {**_of_process(proc), **_of_machine(proc), **_of_limits()}
    return found


def _of_process(proc: Path) -> dict[str, Any]:
    names = {"VmRSS": "rss_mb", "VmHWM": "rss_peak_mb", "VmSize": "virtual_mb"}
    return _in_kib(proc / "self" / "status", names)


def _of_machine(proc: Path) -> dict[str, Any]:
    return _in_kib(proc / "meminfo", {"MemTotal": "ram_total_mb", "MemAvailable": "ram_available_mb"})


def _of_limits() -> dict[str, Any]:
    if sys.platform == "win32":
        return {}
    import resource

    limits = {"address_space_limit_mb": resource.RLIMIT_AS, "data_limit_mb": resource.RLIMIT_DATA}
    stated = {name: resource.getrlimit(number)[0] for name, number in limits.items()}
    return {name: round(limit / _MB, 1) for name, limit in stated.items() if limit != resource.RLIM_INFINITY}


def _in_kib(path: Path, names: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for line in _lines(path):
        name, _, rest = line.partition(":")
        value = rest.split()
        if name in names and value and value[0].isdecimal():
            found[names[name]] = round(int(value[0]) / 1024, 1)
    return found


def _lines(path: Path) -> list[str]:
    """Return the lines of a kernel file; an empty list if there is no such file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line, _ in zip(file, range(_MAX_LINES), strict=False)]
    except OSError:
        return []
