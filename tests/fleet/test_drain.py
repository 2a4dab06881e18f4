"""A shipper that is stopped ships what is left, and one shard that hangs holds up neither that nor other runs."""

from __future__ import annotations

import random
import signal
import threading

import pytest

from tests.fleet.engines import Cluster, NoEngine, set_up
from tests.fleet.shipped_runs import append, engine_bytes, id_of, make_run, record_bytes, ship
from tests.fork_server import start_python
from tests.lengths import longer
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.shipping import sender
from toolkit.telemetry.fleet.shipping.shipper import Shipper

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
    hosts = ",".join(f"127.0.0.1:{port}" for _, port in engine.address().hosts)
    for number in range(jobs):
        end = list(ENDS)[number % len(ENDS)]
        place = logs / str(number)
        place.mkdir()
        said = tmp_path / f"said {number}"
        with said.open("w") as stderr:
            shipper = start_python(
                ["-m", "toolkit.telemetry.cli", "ship", place, "--to", f"clickhouse://{hosts}/telemetry"],
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
        f"ClickHouse {engine.name}: {jobs} jobs whose shipper got SIGTERM as they ended, 0 lines left behind",
    )


def test_a_shard_that_hangs_holds_up_neither_other_runs_nor_the_end(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "EVERY_S", 0.05)
    try:
        cluster = Cluster(tmp_path / "cluster")
    except NoEngine as error:
        pytest.skip(str(error))
    said, stop = [], threading.Event()
    try:
        cluster.start()
        set_up(cluster.address(), cluster.cluster)
        folders = [make_run(logs, f"run{number}", 5, run_id=f"run {number}") for number in range(8)]
        # Nobody who waits for the shard comes back before the test is over.
        shipper = Shipper(Engine(cluster.address(), patience_s=3600.0), [logs], say=said.append)
        thread = threading.Thread(target=shipper.run, args=(stop, None, 1.0))
        thread.start()
        wait_until(lambda: len(shipper.files) == len(folders) and not shipper.behind)
        healthy, hung = [{folder.name for folder in one.watch.runs} for one in shipper.senders]
        assert healthy
        assert hung
        cluster.servers[1].process.send_signal(signal.SIGSTOP)
        for folder in folders:
            append(folder, range(5, 9))
        connection = Engine(shipper.senders[0].engine.address, suffix="_local")
        for folder in folders:
            expected = record_bytes(folder)["metrics.jsonl"]
            if folder.name in healthy:
                wait_until(lambda of=folder, all_of=expected: committed(connection, of) == len(all_of))
        stop.set()
        thread.join()

        assert [line for line in said if line.startswith("stopped after 1 s; left for the next shipper")]
        assert all(f"{name}/metrics.jsonl" in said[-1] for name in hung)
        assert not any(f"{name}/metrics.jsonl" in said[-1] for name in healthy)
        cluster.servers[1].process.send_signal(signal.SIGCONT)
        ship(cluster, logs)
        everywhere = Engine(cluster.address())
        for folder in folders:
            assert engine_bytes(everywhere, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    finally:
        stop.set()
        cluster.stop()


def committed(connection, folder):
    return connection.rows(
        f"SELECT max(end) FROM commits_local WHERE run_id = {quote(id_of(folder))}", "UInt64"
    )[0][0]
