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
            *("String", "UInt8", "UInt64"),
        )
        assert state == [(ENDS[end], 1, 0)]
    record_property(
        "measured",
        f"{jobs} jobs whose shipper got SIGTERM as they ended, 0 lines left behind",
    )
