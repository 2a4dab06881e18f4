"""AMD's GPUs, through a stand-in with the calls that AMD documents: there is no such GPU here."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers import amd, nvml, registry
from toolkit.telemetry.logger.machine.samplers.amd import AmdSampler
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample


class AmdSmiLibraryException(Exception):
    def get_error_code(self):
        return self.args[0]


def stand_in(*gpus):
    """Return AMD's module over `gpus`, each the answers of one; an exception is raised."""

    def answer(name):
        def ask(gpu, *_):
            found = gpus[gpu][name]
            if isinstance(found, Exception):
                raise found
            return found

        return ask

    calls = []
    return SimpleNamespace(
        calls=calls,
        AmdSmiLibraryException=AmdSmiLibraryException,
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        AmdSmiClkType=SimpleNamespace(GFX=0),
        amdsmi_init=lambda: calls.append("init"),
        amdsmi_shut_down=lambda: calls.append("shut down"),
        amdsmi_get_processor_handles=lambda: list(range(len(gpus))),
        amdsmi_get_gpu_activity=answer("activity"),
        amdsmi_get_gpu_vram_usage=answer("vram"),
        amdsmi_get_power_info=answer("power"),
        amdsmi_get_power_cap_info=answer("cap"),
        amdsmi_get_temp_metric=answer("temperature"),
        amdsmi_get_clock_info=answer("clock"),
    )


def gpu(**answers):
    return {
        "activity": {"gfx_activity": 87, "umc_activity": 40, "mm_activity": "N/A"},
        "vram": {"vram_total": 196_592, "vram_used": 20_480},
        "power": {"current_socket_power": 512, "average_socket_power": "N/A", "power_limit": 750},
        "cap": {"power_cap": 750_000_000},
        "temperature": 61,
        "clock": {"clk": 2100},
        **answers,
    }


def test_a_gpu_of_amd_has_the_fields_of_one_of_nvidia():
    smi = stand_in(gpu())
    asking = AmdSampler(amdsmi=smi, environ={})
    sample = asking.sample()
    asking.close()

    assert sample == {
        "gpu_util": 87,
        "gpu/0/util": 87,
        "gpu/0/mem_used_gb": 20.0,
        "gpu/0/mem_total_gb": 191.984,
        "gpu/0/power_w": 512,
        "gpu/0/power_limit_w": 750.0,
        "gpu/0/temp_c": 61,
        "gpu/0/sm_clock_mhz": 2100,
    }
    assert smi.calls == ["init", "shut down"]


def test_what_a_gpu_does_not_offer_is_absent_and_no_failure():
    guard = Guard()
    older = gpu(
        activity={"gfx_activity": "N/A"},
        power={"current_socket_power": "N/A", "average_socket_power": 90},
        cap=AmdSmiLibraryException(2),
        clock={"clk": 0xFFFF},
    )
    other = gpu(cap={"power_cap": "N/A"})
    sample = AmdSampler(amdsmi=stand_in(older), environ={}, guard=guard).sample()

    assert "gpu/0/power_limit_w" not in AmdSampler(amdsmi=stand_in(other), environ={}, guard=guard).sample()
    assert sample == {
        "gpu/0/mem_used_gb": 20.0,
        "gpu/0/mem_total_gb": 191.984,
        "gpu/0/power_w": 90,
        "gpu/0/temp_c": 61,
    }
    assert guard.total == 0


def test_gpus_are_numbered_as_the_script_sees_them():
    smi = stand_in(*(gpu(activity={"gfx_activity": number}) for number in range(4)))
    sample = AmdSampler(amdsmi=smi, environ={"HIP_VISIBLE_DEVICES": "3,1"}).sample()

    assert {name: value for name, value in sample.items() if "util" in name} == {
        "gpu/0/util": 3,
        "gpu/1/util": 1,
        "gpu_util": 3,
    }
    environ = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}
    assert AmdSampler(amdsmi=smi, environ=environ).sample()["gpu/0/util"] == 3


def test_a_machine_without_amds_driver_or_library_is_not_asked(tmp_path, monkeypatch):
    missing, present = str(tmp_path / "missing"), str(tmp_path)

    def names(nvidia, of_amd):
        monkeypatch.setattr(nvml, "_DRIVER", nvidia)
        monkeypatch.setattr(amd, "_DRIVER", of_amd)
        return [sampler.name for sampler in registry.default_samplers(tmp_path)]

    without = names(missing, missing)
    assert "amdsmi" not in without
    # GPUs of two makers would have the same numbers.
    assert names(missing, present) == [*without, "amdsmi"]
    assert names(present, present) == without
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(NothingToSample, match="is not installed"):
        AmdSampler(environ={}).sample()
    with pytest.raises(NothingToSample, match="sees no AMD GPU"):
        AmdSampler(amdsmi=stand_in(gpu()), environ={"HIP_VISIBLE_DEVICES": ""}).sample()
