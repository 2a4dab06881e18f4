"""An engine whose disk is full or that is stopped is waited for; the files are the queue."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import pytest

from tests.fleet.conftest import started
from tests.fleet.shipped_runs import engine_bytes, id_of, make_run, record_bytes, ship
from tests.lengths import in_make_faults
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.schema import set_up
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
    for engine in started(small_disk / "engine"):
        set_up(engine.address())
        folder = make_run(logs, "waits for room", 3000)
        fill(small_disk / "filler")
        with pytest.raises(EngineError, match="cannot take more now: ") as full:
            ship(engine, logs)
        assert "\n" not in str(full.value)
        os.unlink(small_disk / "filler")

        ship(engine, logs)

        connection = Engine(engine.address())
        assert engine_bytes(connection, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
        assert ship(engine, logs).verify() == []


def test_an_engine_that_is_stopped_gets_everything_once_it_goes_on(own_engine, logs):
    folder = make_run(logs, "waits", 30)
    shipper = Shipper(Engine(own_engine.address(), patience_s=1.0), [logs])
    shipper.start()
    own_engine.process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineError, match="has not answered for 1 s"):
        shipper.ship_all()
    own_engine.process.send_signal(signal.SIGCONT)

    ship(own_engine, logs)

    connection = Engine(own_engine.address())
    assert engine_bytes(connection, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}


def fill(path):
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
