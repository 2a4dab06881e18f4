"""What NVIDIA's driver says about the GPUs this process sees."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.safe_reads import SafeReads, plausible
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample, Sample, Value
from toolkit.telemetry.logger.machine.samplers.visible_gpus import (
    VisibleGpu,
    gpus_as_torch_counts,
    visible_gpus,
)

_GB: Final = 1024**3

_THROTTLE_REASONS: Final = {
    # Bit 1, an idle GPU, is no throttling.
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal (software)",
    0x040: "thermal (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}

# What a driver can mean. Some answer 255 % or 4 294 967 W for "I do not know".
_HIGHEST: Final = {
    "util": 100.0,
    "power_w": 20_000.0,
    "power_limit_w": 20_000.0,
    "temp_c": 150.0,
    "sm_clock_mhz": 20_000.0,
}


_MOST_MEMORY_BYTES: Final = 1024**5


class NvmlSampler:
    """Reads NVML: percent, GiB, W, °C and MHz of each visible GPU, under torch's number for it.

    NVML is loaded and initialised by the first `sample`, on the thread that calls it; until then nothing touches
    the driver. Each metric of each GPU fails alone.
    """

    name = "nvml"

    def __init__(
        self, *, guard: Guard | None = None, nvml: Any = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._guard = guard or Guard()
        self._environ = os.environ if environ is None else environ
        self._nvml = nvml
        self._initialised = False
        self._gpus: list[VisibleGpu] = []
        self._numbered_by_torch = False
        self._readings = SafeReads(self._guard)

    def sample(self) -> Sample:
        """Return `gpu/<index>/<metric>` for each visible GPU, and `gpu_util`, that of the first."""
        if not self._gpus:
            self._open()
        self._renumber()
        values: dict[str, Value] = {}
        for gpu in self._gpus:
            self._read(gpu, values)
        util = values.get(f"gpu/{self._gpus[0].index}/util")
        if util is not None:
            values["gpu_util"] = util
        return values

    def close(self) -> None:
        """Let go of NVML. Raises NVMLError if NVML does not let go."""
        if self._initialised:
            self._initialised = False
            self._nvml.nvmlShutdown()

    def _open(self) -> None:
        self._nvml = nvml = self._nvml or load_nvml()
        if not self._initialised:
            initialise(nvml)
            self._initialised = True
        self._readings = SafeReads(
            self._guard, unsupported=(nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
        )
        self._gpus = visible_gpus(nvml, self._environ)
        if not self._gpus:
            raise NothingToSample("this process sees no NVIDIA GPU")

    def _renumber(self) -> None:
        if not self._numbered_by_torch:
            with self._guard.catch("matching GPUs with torch's numbers"):
                gpus = gpus_as_torch_counts(self._nvml)
                self._numbered_by_torch = gpus is not None
                self._gpus = gpus or self._gpus

    def _read(self, gpu: VisibleGpu, values: dict[str, Value]) -> None:
        nvml = self._nvml

        def take(name: str, read: Callable[[], Value | None]) -> None:
            self._readings.take(values, f"gpu/{gpu.index}/{name}", read, source=f"GPU {gpu.index}")

        def number(name: str, read: Callable[[], float]) -> None:
            take(name, lambda: plausible(read(), _HIGHEST[name]))

        def mem_used_gb() -> float | None:
            memory = _memory(nvml, gpu.device)
            total = plausible(memory.total, _MOST_MEMORY_BYTES)
            used = plausible(memory.used, total or 0)
            if not total or used is None:
                return None
            values[f"gpu/{gpu.index}/mem_total_gb"] = round(total / _GB, 3)
            return float(round(used / _GB, 3))

        number("util", lambda: nvml.nvmlDeviceGetUtilizationRates(gpu.device).gpu)
        take("mem_used_gb", mem_used_gb)
        number("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(gpu.board) / 1000)
        number("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.board) / 1000)
        number("temp_c", lambda: nvml.nvmlDeviceGetTemperature(gpu.board, nvml.NVML_TEMPERATURE_GPU))
        number("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(gpu.board, nvml.NVML_CLOCK_SM))
        take("throttle", lambda: _throttle_text(_throttle_bits(nvml, gpu.board)))


def load_nvml() -> Any:
    """Import NVML's Python module. Raises NothingToSample if it is not installed, or the driver's library is not."""
    known = sys.modules.get("pynvml")
    if known is not None:
        return known
    if sys.platform.startswith("linux") and not _has_library():
        # Importing the module takes ten milliseconds and more, in which no other thread runs.
        raise NothingToSample("there is no NVIDIA driver to ask")
    try:
        import pynvml
    except ImportError as error:
        raise NothingToSample("nvidia-ml-py is not installed") from error
    return pynvml


def _has_library() -> bool:
    # Asks only whether the driver's library is there. Not at the top: a training without GPUs may never need it.
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def initialise(nvml: Any) -> None:
    """Initialise NVML on this thread. This is where a broken driver hangs.

    Raises:
        NothingToSample: there is no NVIDIA driver here, or this user may not ask it.
        NVMLError: there is one, and it fails.
    """
    try:
        nvml.nvmlInit()
    except (
        nvml.NVMLError_LibraryNotFound,
        nvml.NVMLError_DriverNotLoaded,
        nvml.NVMLError_NoPermission,
    ) as error:
        raise NothingToSample("there is no NVIDIA driver to ask") from error


@contextlib.contextmanager
def opened_nvml() -> Iterator[Any]:
    """Yield NVML, initialised. Raises what `load_nvml` and `initialise` do."""
    nvml = load_nvml()
    initialise(nvml)
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _memory(nvml: Any, device: Any) -> Any:
    # The second version leaves out what the driver keeps for itself, as nvidia-smi does; drivers before 510 lack it.
    try:
        return nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return nvml.nvmlDeviceGetMemoryInfo(device)


def _throttle_bits(nvml: Any, board: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(board))
    except nvml.NVMLError_FunctionNotFound:
        # The call's name before driver 535.
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(board))


def _throttle_text(bits: int) -> str | None:
    if all(bits & bit for bit in _THROTTLE_REASONS):
        # All at once cannot be: every bit is set where the driver does not know.
        return None
    return ", ".join(text for bit, text in _THROTTLE_REASONS.items() if bits & bit) or None
