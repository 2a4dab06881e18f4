"""Intel's GPUs, through a program that prints what `xpu-smi` does: there is no such GPU here."""

from __future__ import annotations

import json
import sys

import pytest

from tests.waiting import PATIENCE_S
from toolkit.telemetry.machine.samplers import intel
from toolkit.telemetry.machine.samplers.intel import IntelSampler
from toolkit.telemetry.machine.samplers.sampler import NothingToSample

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")


def install(folder, monkeypatch, *answers):
    """Put a program called xpu-smi into the path, which prints the answer for the number behind `-d`."""
    for number, answer in enumerate(answers):
        (folder / str(number)).write_text(json.dumps(answer))
    program = folder / "xpu-smi"
    # A mask of the script must not change how it counts.
    program.write_text(
        f'#!/bin/sh\n[ -z "$ZE_AFFINITY_MASK" ] && [ "$1 $2 $4" = "stats -d -j" ] && cat "{folder}/$3"\n'
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "1")
    monkeypatch.setattr(intel, "_LIMIT_S", PATIENCE_S)


def of_version_1(**values):
    return [{"metrics_type": f"XPUM_STATS_{name}", "value": value} for name, value in values.items()]


def test_both_versions_of_xpu_smi_give_the_fields_of_nvidias_gpus(tmp_path, monkeypatch):
    tiles = [
        {"tile_id": number, "data_list": of_version_1(GPU_CORE_TEMPERATURE=40.0 + number, MEMORY_USED=512)}
        for number in (0, 1)
    ]
    one = {
        "device_id": 0,
        "device_level": of_version_1(GPU_UTILIZATION=87.5, POWER=300.25, MEMORY_USED=2048, GPU_FREQUENCY=-1),
        "tile_level": tiles,
    }
    two = {
        "device_index": 1,
        "utilization": {"gpu_percent": {"tile_0": 80.0, "tile_1": 60.0}},
        "power": {"gpu_power_w": {"tile_0": {"avg": 1.0, "current": 90.0}, "tile_1": {"current": 60.0}}},
        "temperature": {"gpu_core_celsius": {"tile_0": {"current": 41}, "tile_1": {"current": 44}}},
        "memory": {"used_mib": {"tile_0": {"current": 1024}, "tile_1": {"current": 512}}},
        "frequency": {"gpu_frequency_mhz": {"tile_0": {"current": 1550}}},
    }
    install(tmp_path, monkeypatch, one, two, {"error": "device not found"})

    assert IntelSampler().sample() == {
        "gpu/0/util": 87.5,
        "gpu/0/mem_used_gb": 2.0,
        "gpu/0/power_w": 300.25,
        "gpu/0/temp_c": 41.0,
        "gpu/1/util": 70.0,
        "gpu/1/mem_used_gb": 1.5,
        "gpu/1/power_w": 150.0,
        "gpu/1/temp_c": 44,
        "gpu/1/sm_clock_mhz": 1550,
    }


def test_a_machine_without_the_program_or_a_gpu_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NothingToSample, match="is not installed"):
        IntelSampler().sample()
    install(tmp_path, monkeypatch)
    with pytest.raises(NothingToSample, match="knows no GPU"):
        IntelSampler().sample()
    install(tmp_path, monkeypatch, {"utilization": {"gpu_percent": {"tile_0": 5}}})

    assert IntelSampler().sample() == {"gpu/0/util": 5, "gpu_util": 5}
