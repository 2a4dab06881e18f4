"""The same questions, asked of a real NVIDIA GPU; each in a process of its own, where CUDA is not initialised yet."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="there is no NVIDIA driver here"),
]


def run(script: str) -> str:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nvml_answers_and_cuda_stays_untouched():
    run(
        """
        import torch
        from toolkit.telemetry.core.guard import Guard
        from toolkit.telemetry.logger.machine.samplers.nvml import NvmlSampler

        guard = Guard()
        sampler = NvmlSampler(guard=guard)
        sample = sampler.sample()
        sampler.close()
        print(sample, guard.counts)
        assert 0 <= sample["gpu_util"] <= 100
        assert 0 <= sample["gpu/0/mem_used_gb"] <= sample["gpu/0/mem_total_gb"]
        assert 10 < sample["gpu/0/temp_c"] < 100
        assert 10 < sample["gpu/0/power_w"] < 2000
        assert sample["gpu/0/sm_clock_mhz"] > 0
        assert guard.counts == {}
        assert not torch.cuda.is_initialized()
        """
    )


def test_gpus_are_matched_with_torchs_own_numbers():
    run(
        """
        import pynvml, torch
        from toolkit.telemetry.logger.machine.samplers.visible_gpus import gpus_as_torch_counts, visible_gpus

        pynvml.nvmlInit()
        assert gpus_as_torch_counts(pynvml) is None
        torch.zeros(1, device="cuda")
        by_torch = gpus_as_torch_counts(pynvml)
        by_variable = visible_gpus(pynvml, {})
        assert by_torch is not None and len(by_torch) == torch.cuda.device_count()
        names = [pynvml.nvmlDeviceGetName(gpu.board) for gpu in by_torch]
        assert names == [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        assert len(by_variable) == len(by_torch)
        """
    )


def test_the_environment_names_the_gpu():
    run(
        """
        from toolkit.telemetry.logger.machine.environment import describe_environment

        first = describe_environment()["accelerators"][0]
        print(first)
        assert first["index"] == 0 and first["kind"] == "cuda" and "NVIDIA" in first["name"] and first["memory_gb"] > 1
        """
    )
