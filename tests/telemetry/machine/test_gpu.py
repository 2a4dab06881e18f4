from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers.nvml import NvmlSampler
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample


def sampler(nvml, guard=None, **environ):
    return NvmlSampler(guard=guard, nvml=nvml, environ=environ)


def test_every_metric_of_every_gpu_is_read(make_gpu, make_nvml):
    nvml = make_nvml(make_gpu("GPU-1"), make_gpu("GPU-2", util=3, throttle=0x4 | 0x40))

    sample = sampler(nvml).sample()

    assert sample == {
        "gpu_util": 87,
        "gpu/0/util": 87,
        "gpu/0/mem_used_gb": 20.0,
        "gpu/0/mem_total_gb": 80.0,
        "gpu/0/power_w": 312.5,
        "gpu/0/power_limit_w": 700.0,
        "gpu/0/temp_c": 61,
        "gpu/0/sm_clock_mhz": 1980,
        "gpu/1/util": 3,
        "gpu/1/mem_used_gb": 20.0,
        "gpu/1/mem_total_gb": 80.0,
        "gpu/1/power_w": 312.5,
        "gpu/1/power_limit_w": 700.0,
        "gpu/1/temp_c": 61,
        "gpu/1/sm_clock_mhz": 1980,
        "gpu/1/throttle": "power cap, thermal (hardware)",
    }


def test_gpus_are_renumbered_when_torch_says_otherwise(make_gpu, make_nvml, monkeypatch):
    asking = sampler(make_nvml(make_gpu("GPU-slow", util=1), make_gpu("GPU-fast", util=99)))
    before = asking.sample()
    in_torchs_order = ["fast", "slow"]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(uuid=in_torchs_order[index]),
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)

    after = asking.sample()

    assert (before["gpu/0/util"], after["gpu/0/util"]) == (1, 99)


def test_a_lost_gpu_leaves_the_others_and_is_one_kind_of_trouble(make_gpu, make_nvml):
    guard = Guard()
    lost = make_nvml.NVMLError_GpuIsLost()
    dead = make_gpu(
        "GPU-1",
        util=lost,
        memory=lost,
        power=lost,
        power_limit=lost,
        temperature=lost,
        clock=lost,
        throttle=lost,
    )

    sample = sampler(make_nvml(dead, make_gpu("GPU-2")), guard).sample()

    assert not [name for name in sample if name.startswith("gpu/0")]
    assert sample["gpu/1/util"] == 87
    assert "gpu_util" not in sample
    assert list(guard.counts) == ["reading GPU 0: NVMLError_GpuIsLost"]


def test_a_gpu_that_comes_back_is_read_again(make_gpu, make_nvml):
    gpu = make_gpu("GPU-1", power=make_nvml.NVMLError_Unknown("?"))
    asking = sampler(make_nvml(gpu))
    asking.sample()
    gpu.answers["power"] = 100_000

    samples = [asking.sample() for _ in range(70)]

    assert "gpu/0/power_w" not in samples[0]
    assert samples[-1]["gpu/0/power_w"] == 100.0


def test_an_old_driver_is_asked_by_the_old_names(make_gpu, make_nvml):
    nvml = make_nvml(make_gpu("GPU-1", throttle=0x8))
    nvml.has_new_names = False

    sample = sampler(nvml).sample()

    assert sample["gpu/0/mem_used_gb"] == 20.0
    assert sample["gpu/0/throttle"] == "hardware slowdown"


def test_no_visible_gpu_is_nothing_to_sample_and_nvml_is_released(make_gpu, make_nvml):
    nvml = make_nvml(make_gpu("GPU-1"))
    asking = sampler(nvml, CUDA_VISIBLE_DEVICES="")

    with pytest.raises(NothingToSample):
        asking.sample()
    asking.close()

    assert not nvml.is_open


def test_a_driver_that_fails_to_start_is_tried_again(make_gpu, make_nvml):
    nvml = make_nvml(make_gpu("GPU-1"))
    nvml.init_error = nvml.NVMLError_Unknown("?")
    asking = sampler(nvml)
    with pytest.raises(nvml.NVMLError_Unknown):
        asking.sample()
    nvml.init_error = None

    assert asking.sample()["gpu_util"] == 87
