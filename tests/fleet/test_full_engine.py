"""An engine whose disk is full or that is stopped is waited for; the files are the queue."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest

from tests.fleet.engines import Cluster, NoEngine, set_up
from tests.fleet.shipped_runs import engine_bytes, id_of, make_run, record_bytes, ship
from tests.lengths import in_make_faults
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.shipping.shipper import Shipper

pytestmark = in_make_faults


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_an_engine_with_a_full_disk_gets_everything_once_there_is_room(small_disk, logs):
    cluster = started(small_disk / "engine")
    try:
        set_up(cluster.address())
        folder = make_run(logs, "waits for room", 3000)
        fill(small_disk / "filler")
        with pytest.raises(EngineError, match="cannot take more now: ") as full:
            ship(cluster, logs)
        assert "\n" not in str(full.value)
        os.unlink(small_disk / "filler")

        ship(cluster, logs)

        connection = Engine(cluster.address())
        assert engine_bytes(connection, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
        assert ship(cluster, logs).verify() == []
    finally:
        cluster.stop()


def test_an_engine_that_is_stopped_gets_everything_once_it_goes_on(logs, tmp_path):
    cluster = started(tmp_path / "engine")
    try:
        set_up(cluster.address())
        folder = make_run(logs, "waits", 30)
        shipper = Shipper(Engine(cluster.address(), patience_s=1.0), [logs])
        shipper.start()
        cluster.servers[0].process.send_signal(signal.SIGSTOP)
        with pytest.raises(EngineError, match="has not answered for 1 s"):
            shipper.ship_all()
        cluster.servers[0].process.send_signal(signal.SIGCONT)

        ship(cluster, logs)

        connection = Engine(cluster.address())
        assert engine_bytes(connection, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    finally:
        cluster.stop()


def fill(path):
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass


def started(folder):
    try:
        cluster = Cluster(folder, shards=1)
    except NoEngine as error:
        pytest.skip(str(error))
    cluster.start()
    return cluster
