"""Every second of the example has its place in the ledger, across a kill and a resume; and its trace can be opened."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.timing.trace_checker import check_trace
from toolkit.runfolder.manifest import read_manifest
from toolkit.timing.history import read_run_time

ROOT = Path(__file__).parents[2]


@pytest.fixture
def longer(process):
    """A training with something of everything, which a test can kill between two checkpoints."""
    process["train"].update(batch_size=4, steps=45, warmup=5)
    process["train"]["validation_config"] = {"validate_every": 15, "num_images": 16}
    process["save"].update(save_every=10)
    process["sample"].update(sample_every=20, sample_steps=4)
    process["telemetry"].update(log_every=5)


@pytest.mark.slow
@pytest.mark.usefixtures("longer")
def test_the_examples_time_adds_up_across_a_kill_and_a_resume(start, records, run_folder):
    began = time.time()
    run = start()
    deadline = time.monotonic() + 90
    while not any(step["global_step"] >= 25 for step in records("step")):
        assert run.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline, "it never got to step 25"
        time.sleep(0.02)
    run.kill()
    killed = time.time()
    run.wait()

    began_again = time.time()
    run = start()
    output = run.communicate(timeout=120)[0]
    assert run.returncode == 0, output

    ledger = read_run_time(run_folder).ledger
    seconds = {line.entry: line.seconds for line in ledger.lines}
    assert sum(seconds.values()) == pytest.approx(ledger.wall_s, rel=1e-6)
    by_session = [sum(line.seconds for line in session.lines) for session in ledger.sessions]
    assert sum(by_session) == pytest.approx(ledger.wall_s, rel=1e-6)
    # What a process is before its first line of Python and behind its last is not ours to see: a part of a second.
    end = records("end")[-1]["time"]
    assert by_session[0] == pytest.approx(killed - began, rel=0.01, abs=1.0)
    assert by_session[1] == pytest.approx(end - began_again, rel=0.01, abs=0.5)
    assert ledger.between_sessions_s < began_again - began

    # run.json says when the killed session gave its last sign of life.
    assert read_manifest(run_folder).sessions[0].ended == pytest.approx(killed, abs=1.5)

    # Killed behind step 25, it went on from the checkpoint of step 20.
    assert records("start")[-1]["resumed_from_step"] == 20
    assert seconds["redone"] > 0
    for entry in ("training", "validation", "checkpoint", "sampling", "startup", "data_wait"):
        assert seconds[entry] > 0, entry
    assert seconds["unaccounted"] < 0.1 * ledger.wall_s
    assert ledger.goodput == pytest.approx(seconds["training"] / ledger.wall_s)

    steps = records("step")
    for part in ("data_loading", "forward", "backward", "optimizer_update"):
        assert all(f"time/{part}" in step for step in steps), part
    names = {span["name"] for span in records("span")}
    assert {"application", "model_init", "checkpoint_load", "validation_loop", "sampling"} <= names
    saved = [event for event in records("span_event") if event["name"] == "save_checkpoint_success"]
    assert saved[-1]["attributes"]["productive_train_iterations"] == 45
    assert saved[-1]["attributes"]["checkpoint_size"] > 0

    trace = run_folder / "trace.json"
    command = [sys.executable, "-m", "toolkit.cli.main", "trace", str(run_folder), "-o", str(trace)]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert finished.returncode == 0, finished.stderr
    check_trace(trace.read_bytes())
