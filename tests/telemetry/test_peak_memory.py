from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger
from tests.telemetry.machine.torch_backend import Backend
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.peak_memory import peak_memory
from toolkit.telemetry.logger.session import live_run

MIB = 1024**2


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="there is no such counter here")
def test_memory_that_was_held_and_given_back_is_still_the_peak():
    code = """
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.peak_memory import peak_memory
before = peak_memory(Guard())["cpu_mem_peak_mb"]
held = bytearray(b"x") * (60 * 1024 * 1024)
del held
print(before, peak_memory(Guard())["cpu_mem_peak_mb"])
"""
    # The parent of this process holds far more than it does, which is not its own.
    ballast = bytearray(b"x") * (200 * MIB)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    )
    del ballast
    before, after = map(float, ended.stdout.split())

    assert before < 200
    assert after - before > 45


def gpus_in(found):
    return {name: value for name, value in found.items() if name.startswith("gpu/")}


def test_the_allocator_s_own_peak_is_read_for_each_device_that_was_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.cuda", Backend((0, 0, 5), (0, 0, 0), (0, 0, 0.5)))

    assert gpus_in(peak_memory(Guard(), PATIENCE_S)) == {"gpu/0/mem_peak_gb": 5.0, "gpu/2/mem_peak_gb": 0.5}


def test_a_device_that_the_script_has_not_initialised_is_left_alone(monkeypatch):
    backend = Backend((0, 0, 1), initialised=False)
    monkeypatch.setitem(sys.modules, "torch.cuda", backend)

    assert gpus_in(peak_memory(Guard(), PATIENCE_S)) == {}
    assert backend.asked == []


def test_a_run_ends_well_whatever_its_allocator_does(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.cuda", Backend(RuntimeError("no counters")))
    monkeypatch.setattr(live_run, "peak_memory", partial(peak_memory, timeout_s=PATIENCE_S))
    with make_logger(tmp_path) as log:
        log.log_step(1, train_loss=0.5)
    [end] = read_records(log.run_folder / "metrics.jsonl", "end")

    assert end["status"] == "finished"
    assert log.guard.counts == {"reading the peak of the GPUs' memory: RuntimeError": 1}


@pytest.mark.gpu
def test_a_real_allocator_reports_memory_that_was_given_back(tmp_path):
    import torch

    with make_logger(tmp_path) as log:
        held = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
        del held
        log.log_step(1, train_loss=0.5)
    [end] = read_records(log.run_folder / "metrics.jsonl", "end")

    assert end["gpu/0/mem_peak_gb"] >= 0.5
    assert end["gpu/0/mem_peak_gb"] == pytest.approx(torch.cuda.max_memory_allocated(0) / 1024**3, abs=1e-3)
    assert torch.cuda.memory_allocated(0) < 512 * MIB
