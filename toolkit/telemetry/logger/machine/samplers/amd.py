"""What AMD's driver says about the GPUs this process sees, by AMD's own library.

Written after the Python interface of AMD SMI 24.7 (ROCm 6.3) and the documents of 7.1; not tried on hardware.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.safe_reads import SafeReads, plausible
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample, Sample, Value

_DRIVER: Final = "/dev/kfd"
_MB_A_GB: Final = 1024
_MOST_MEMORY_MB: Final = 1024**3
_MOST_W: Final = 20_000.0
_POWER: Final = ("current_socket_power", "average_socket_power", "socket_power")
"""The first that is known: of MI300 and newer, of others, and since ROCm 6.4."""
_NOT_OFFERED: Final = (2, 3)
"""Error codes: not supported, not yet implemented."""
_VISIBLE: Final = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))


def has_amd_gpus() -> bool:
    """Return whether AMD's compute driver is loaded; nothing is imported or asked."""
    return os.path.exists(_DRIVER)


class AmdSampler:
    """Reads AMD SMI: percent, GiB, W, °C and MHz of each visible GPU, under the names that NVIDIA's have."""

    name = "amdsmi"

    def __init__(
        self, *, guard: Guard | None = None, amdsmi: Any = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._guard = guard or Guard()
        self._environ = os.environ if environ is None else environ
        self._smi = amdsmi
        self._is_open = False
        self._gpus: dict[int, Any] = {}
        self._readings = SafeReads(self._guard)

    def sample(self) -> Sample:
        """Return `gpu/<index>/<metric>` for each visible GPU, and `gpu_util`, that of the first."""
        if not self._gpus:
            self._open()
        values: dict[str, Value] = {}
        for index, gpu in self._gpus.items():
            self._read(index, gpu, values)
        util = values.get(f"gpu/{min(self._gpus)}/util")
        return values if util is None else {**values, "gpu_util": util}

    def close(self) -> None:
        """Let go of the library."""
        if self._is_open:
            self._is_open = False
            self._smi.amdsmi_shut_down()

    def _open(self) -> None:
        try:
            self._smi = smi = self._smi or importlib.import_module("amdsmi")
        except (ImportError, OSError, KeyError) as error:
            # It looks for its library while it is imported.
            raise NothingToSample("amdsmi, which comes with ROCm, is not installed") from error
        if not self._is_open:
            smi.amdsmi_init()
            self._is_open = True
        found = dict(enumerate(smi.amdsmi_get_processor_handles()))
        # The runtime leaves some out, and HIP counts the rest.
        for names in _VISIBLE:
            asked = next((self._environ[name] for name in names if name in self._environ), None)
            if asked is not None:
                numbers = [int(one) if one.strip().isdecimal() else -1 for one in asked.split(",")]
                found = {index: found[number] for index, number in enumerate(numbers) if number in found}
        self._gpus = found
        if not found:
            raise NothingToSample("this process sees no AMD GPU")

    def _read(self, index: int, gpu: Any, values: dict[str, Value]) -> None:
        smi = self._smi

        def take(name: str, read: Callable[[], object], highest: float) -> None:
            def asked() -> Value | None:
                try:
                    return plausible(read(), highest)
                except smi.AmdSmiLibraryException as error:
                    if error.get_error_code() in _NOT_OFFERED:
                        return None
                    raise

            self._readings.take(values, f"gpu/{index}/{name}", asked, source=f"GPU {index}")

        def memory(which: str) -> float | None:
            used = plausible(smi.amdsmi_get_gpu_vram_usage(gpu)[which], _MOST_MEMORY_MB)
            return round(used / _MB_A_GB, 3) if used is not None else None

        def power() -> object:
            said = smi.amdsmi_get_power_info(gpu)
            known = (plausible(said.get(name), _MOST_W) for name in _POWER)
            return next((watts for watts in known if watts), None)

        def limit() -> object:
            micro = plausible(smi.amdsmi_get_power_cap_info(gpu)["power_cap"], _MOST_W * 1e6)
            return micro / 1e6 if micro else None

        def temperature() -> object:
            # Documented as thousandths of a degree; the library has divided already.
            sensor, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            return smi.amdsmi_get_temp_metric(gpu, sensor, now)

        def clock() -> object:
            return smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["clk"]

        take("util", lambda: smi.amdsmi_get_gpu_activity(gpu)["gfx_activity"], 100.0)
        take("mem_used_gb", lambda: memory("vram_used"), _MOST_MEMORY_MB)
        take("mem_total_gb", lambda: memory("vram_total"), _MOST_MEMORY_MB)
        take("power_w", power, _MOST_W)
        take("power_limit_w", limit, _MOST_W)
        take("temp_c", temperature, 150.0)
        take("sm_clock_mhz", clock, 20_000.0)
