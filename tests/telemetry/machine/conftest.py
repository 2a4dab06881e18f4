"""A stand-in for NVML's Python module, that lies, fails and hangs on request."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest


class NVMLError(Exception):
    pass


def _error(name: str) -> type[NVMLError]:
    return type(name, (NVMLError,), {})


class FakeGpu:
    """One board; an answer is a value, or an exception to raise."""

    def __init__(self, uuid: str, **answers):
        self.uuid = uuid
        self.answers = {
            "util": 87,
            "memory": (80 * 1024**3, 20 * 1024**3),
            "power": 312_500,
            "power_limit": 700_000,
            "temperature": 61,
            "clock": 1980,
            "throttle": 0x1,
            "name": "NVIDIA H200",
            "mig_slices": [],
            **answers,
        }

    def ask(self, what: str):
        answer = self.answers[what]
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeNvml:
    """The functions of NVML that we call, over `gpus`."""

    NVMLError = NVMLError
    NVMLError_NotSupported = _error("NVMLError_NotSupported")
    NVMLError_FunctionNotFound = _error("NVMLError_FunctionNotFound")
    NVMLError_InvalidArgument = _error("NVMLError_InvalidArgument")
    NVMLError_LibraryNotFound = _error("NVMLError_LibraryNotFound")
    NVMLError_DriverNotLoaded = _error("NVMLError_DriverNotLoaded")
    NVMLError_NoPermission = _error("NVMLError_NoPermission")
    NVMLError_GpuIsLost = _error("NVMLError_GpuIsLost")
    NVMLError_NotFound = _error("NVMLError_NotFound")
    NVMLError_Unknown = _error("NVMLError_Unknown")
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 2

    def __init__(self, *gpus: FakeGpu):
        self.gpus = list(gpus)
        self.init_error: Exception | None = None
        self.init_hangs_on: threading.Event | None = None
        self.is_open = False
        self.has_new_names = True

    def nvmlInit(self):
        if self.init_hangs_on is not None:
            self.init_hangs_on.wait(30)
        if self.init_error is not None:
            raise self.init_error
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index].answers.get("open"):
            raise self.gpus[index].answers["open"]
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for gpu in self.gpus:
            for device in (gpu, *gpu.answers["mig_slices"]):
                if device.uuid == uuid:
                    return device
        raise self.NVMLError_NotFound

    def nvmlDeviceGetUUID(self, gpu):
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu):
        return gpu.ask("name")

    def nvmlDeviceGetMigMode(self, gpu):
        return [1, 1] if gpu.answers["mig_slices"] else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, slot):
        if slot >= len(gpu.answers["mig_slices"]):
            raise self.NVMLError_NotFound
        return gpu.answers["mig_slices"][slot]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device):
        return next(gpu for gpu in self.gpus if device in gpu.answers["mig_slices"])

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=gpu.ask("util"))

    def nvmlDeviceGetMemoryInfo(self, gpu, version=None):
        if version is not None and not self.has_new_names:
            raise self.NVMLError_FunctionNotFound
        total, used = gpu.ask("memory")
        return SimpleNamespace(total=total, used=used)

    def nvmlDeviceGetPowerUsage(self, gpu):
        return gpu.ask("power")

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):
        return gpu.ask("power_limit")

    def nvmlDeviceGetTemperature(self, gpu, kind):
        return gpu.ask("temperature")

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return gpu.ask("clock")

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
        if not self.has_new_names:
            raise self.NVMLError_FunctionNotFound
        return gpu.ask("throttle")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):
        return gpu.ask("throttle")


@pytest.fixture
def make_gpu():
    return FakeGpu


@pytest.fixture
def make_nvml():
    return FakeNvml


@pytest.fixture(autouse=True)
def _no_gpus_of_torch(monkeypatch):
    """Whatever machine the tests run on, torch's own numbering stays out of those that do not ask for it."""
    monkeypatch.delitem(__import__("sys").modules, "torch.cuda", raising=False)
