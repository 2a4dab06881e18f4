"""Every second of the example has its place in the ledger, across a kill and a resume; and its trace can be opened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from tests.timing.trace_checker import check_trace
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.process import process_began
from toolkit.telemetry.timing.history import read_run_time

ROOT = Path(__file__).parents[2]

# By itself, and so at exactly that step, even on a slow machine.
KILLED_AT_STEP_27 = """
import os, signal, sys
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.trainer.loop import TrainingLoop
plain = TrainingLoop._answer_requests
def answer_or_die(loop):
    plain(loop)
    if loop.state.step == 27:
        os.kill(os.getpid(), signal.SIGKILL)
TrainingLoop._answer_requests = answer_or_die
sys.exit(main())
"""


@pytest.fixture
def longer(process):
    """A training with something of everything, which a test can kill between two checkpoints."""
    process["train"].update(num_images=8, batch_size=4, steps=45, warmup=5, validate_every=15, save_every=10)
    process["sample"].update(sample_every=20)
    process["telemetry"].update(log_every=5)


@pytest.mark.slow
@in_make_faults
@pytest.mark.usefixtures("longer")
def test_the_examples_time_adds_up_across_a_kill_and_a_resume(start, write, records, run_folder, tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED_AT_STEP_27, "train", str(write())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    # Not the time before the call: a machine that pauses may need seconds to start a process.
    began = process_began(run.pid)
    assert run.wait(120) == -signal.SIGKILL
    killed = time.time()

    run = start()
    began_again = process_began(run.pid)
    output = run.communicate(timeout=120)[0]
    assert run.returncode == 0, output

    ledger = read_run_time(run_folder).ledger
    seconds = {line.entry: line.seconds for line in ledger.lines}
    assert sum(seconds.values()) == pytest.approx(ledger.wall_s, rel=1e-6)
    by_session = [sum(line.seconds for line in session.lines) for session in ledger.sessions]
    assert sum(by_session) == pytest.approx(ledger.wall_s, rel=1e-6)
    # From the start of a process to its last record; what comes after that is not ours to see.
    last = max(record["time"] for record in records(None) if record["session"] == 1)
    end = records("end")[-1]["time"]
    assert by_session[0] == pytest.approx(last - began, abs=0.5)
    assert by_session[1] == pytest.approx(end - began_again, abs=0.5)
    assert ledger.between_sessions_s < began_again - began

    # run.json says when the killed session gave its last sign of life.
    assert last <= read_manifest(run_folder).sessions[0].ended <= killed

    # Killed after step 25, it resumed from the checkpoint of step 20.
    assert records("start")[-1]["resumed_from_step"] == 20
    assert seconds["redone"] > 0
    for entry in ("training", "validation", "checkpoint", "sampling", "startup", "data_wait"):
        assert seconds[entry] > 0, entry
    # A few hundredths, and what a pause of the machine adds that falls there.
    assert seconds["unaccounted"] < 0.3 * ledger.wall_s
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
    command = [
        sys.executable,
        "-m",
        "toolkit.telemetry.cli",
        "export",
        "--to",
        "trace",
        str(run_folder),
        "-o",
        str(trace),
    ]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert finished.returncode == 0, finished.stderr
    check_trace(trace.read_bytes())
