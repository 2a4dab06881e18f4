"""A shipper that is stopped ships what is left."""

from __future__ import annotations

import random

from tests.fleet.shipped_runs import engine_bytes, id_of, record_bytes
from tests.fork_server import start_python
from tests.lengths import longer
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import quote

SHIPPER = ("toolkit.telemetry.cli.commands.send.ship", "toolkit.telemetry.cli.main", "toolkit.telemetry")

TRAINING = """
import os, signal, sys, time
from toolkit.telemetry import TelemetryLogger
log_dir, end, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
with TelemetryLogger("job", log_dir=log_dir, log_every=1, flush_interval=0.05, diagnostics=False) as log:
    log.log_start()
    for step in range(steps):
        log.log_step(step, train_loss=1.0 / (step + 1))
        time.sleep(0.002)
    if end == "killed":
        log.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "failed":
        raise SystemExit("out of memory")
"""
STOPPED = """
import signal, sys, time
from pathlib import Path
from toolkit.telemetry import TelemetryLogger
with TelemetryLogger("job", log_dir=sys.argv[1], log_every=1, flush_interval=0.05, diagnostics=False) as log:
    log.log_start()
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    stop, step = [], 0
    while not stop:
        log.log_step(step, train_loss=1.0 / (step + 1))
        step += 1
        time.sleep(0.01)
    # What a training does before it ends, such as a checkpoint.
    for _ in range(100):
        log.log_step(step, train_loss=1.0 / (step + 1))
        step += 1
        time.sleep(0.03)
"""
ENDS = {"finished": "finished", "failed": "failed", "killed": "lost"}


def test_a_job_whose_shipper_is_stopped_as_it_ends_is_shipped_whole(
    engine, ask, logs, tmp_path, record_property
):
    chance = random.Random(5)
    jobs = longer(3, 50)
    for number in range(jobs):
        end = list(ENDS)[number % len(ENDS)]
        place = logs / str(number)
        place.mkdir()
        said = tmp_path / f"said {number}"
        with said.open("w") as stderr:
            shipper = start_python(
                ["-m", "toolkit.telemetry.cli", "ship", place, "--to", str(engine.address())],
                SHIPPER,
                stderr=stderr,
            )
        wait_until(lambda said=said: "shipping" in said.read_text(), shipper)
        training = start_python(["-c", TRAINING, place, end, chance.randrange(1, 100)])
        training.wait()
        shipper.terminate()

        assert shipper.wait() == 0, said.read_text()
        assert said.read_text().count("\n") == 1
        (folder,) = place.iterdir()
        assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
        state = ask.rows(
            "SELECT argMax(status, version), argMax(sure, version), argMax(behind, version) FROM runs "
            f"WHERE run_id = {quote(id_of(folder))}",
        )
        assert state == [(ENDS[end], 1, 0)]
    record_property(
        "measured",
        f"{jobs} jobs whose shipper got SIGTERM as they ended, 0 lines left behind",
    )


def test_a_training_and_its_shipper_that_are_stopped_together_leave_nothing(engine, ask, logs, tmp_path):
    said = tmp_path / "said"
    with said.open("w") as stderr:
        command = ["-m", "toolkit.telemetry.cli", "ship", logs, "--to", str(engine.address())]
        shipper = start_python([*command, "--drain-timeout", "100"], SHIPPER, stderr=stderr)
    training = start_python(["-c", STOPPED, logs])
    folder = logs / "job"
    known = "SELECT count() FROM runs WHERE run_id = {}"
    # It handles the signal from its first step on.
    wait_until(lambda: b'"event":"step"' in record_bytes(folder).get("metrics.jsonl", b""), training)
    wait_until(lambda: ask.rows(known.format(quote(id_of(folder)))) != [(0,)], shipper)

    shipper.terminate()
    training.terminate()

    assert shipper.wait() == 0, said.read_text()
    assert training.wait() == 0
    assert said.read_text().count("\n") == 1
    assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    state = ask.rows(
        f"SELECT argMax(status, version), argMax(behind, version) FROM runs WHERE run_id = {quote(id_of(folder))}",
    )
    assert state == [("finished", 0)]
