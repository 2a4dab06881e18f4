"""run.py as a user starts it: what it prints, its exit codes, and how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.trainer.loop import TrainingLoop

ROOT = Path(__file__).parents[2]
PATIENCE_S = 100


@pytest.fixture
def endless(process):
    """A training that has to be stopped."""
    process["train"].update(steps=1_000_000, lr=2e-3, lr_scheduler="constant")
    process["train"].update(validate_every=1000, save_every=1_000_000)
    process["sample"]["sample_every"] = 0


def test_a_training_prints_where_everything_is(train, records, tmp_path, capfd):
    code = train("--steps", "3", "--log-dir", "runs")
    output = capfd.readouterr().out

    assert code == 0
    assert "[telemetry] run_name=tiny_neon_lora" in output
    assert "[run] step 3/3 (100%)  loss 0." in output
    assert "[run] checkpoint: output/tiny_neon_lora/tiny_neon_lora.pt" in output
    assert "[run] run folder: runs/tiny_neon_lora" in output
    steps = records("step", tmp_path / "runs" / "tiny_neon_lora")
    assert [record["global_step"] for record in steps] == [1, 2, 3]
    assert (tmp_path / "output" / "tiny_neon_lora" / "tiny_neon_lora.pt").exists()


@pytest.mark.usefixtures("endless")
def test_sigterm_saves_and_ends_the_run(train, records, monkeypatch):
    answer = TrainingLoop._answer_requests

    def terminated_at_the_third_step(loop):
        answer(loop)
        if loop.state.step == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TrainingLoop, "_answer_requests", terminated_at_the_third_step)
    before = signal.getsignal(signal.SIGTERM)

    assert train() == 143
    assert records("end")[-1]["reason"] == "signal"
    assert records("checkpoint")[-1]["global_step"] == records("step")[-1]["global_step"] == 3
    assert signal.getsignal(signal.SIGTERM) == before


@in_make_faults
@pytest.mark.usefixtures("endless")
def test_the_control_file_scales_the_rate_then_saves_and_stops_and_the_run_resumes(
    train, run_folder, records, monkeypatch
):
    answer = TrainingLoop._answer_requests

    def steered(loop):
        answer(loop)
        if loop.state.step == 3:
            ask(run_folder, {"lr_scale": 0.5})
        elif loop.state.step % 20 == 0 and records("step")[-1]["lr"] == pytest.approx(1e-3):
            ask(run_folder, {"actions": ["save_and_stop"]})

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_answer_requests", steered)
        assert train() == 0

    assert records("end")[-1]["reason"] == "stopped"
    last = records("step")[-1]["global_step"]
    assert records("checkpoint")[-1]["global_step"] == last

    assert train("--steps", str(last + 2)) == 0
    later = [record["global_step"] for record in records("step") if record["session"] == 2]
    assert later == [last + 1, last + 2]


def ask(folder, request):
    fresh = folder / "control.json.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, json.dumps({**request, "timestamp": time.time()}).encode())
    os.close(descriptor)
    os.replace(fresh, folder / "control.json")


def test_without_torch_it_says_how_to_install_it(write):
    hide_torch = (
        "import sys; sys.modules['torch'] = None;"
        "from toolkit.telemetry.trainer.command import main; sys.exit(main(sys.argv[1:]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", hide_torch, str(write())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert run.returncode == 2
    assert "training needs torch" in run.stderr
    assert install_extra("training") in run.stderr
    assert "Traceback" not in run.stderr
