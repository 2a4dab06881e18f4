"""Nothing is lost, doubled or wrong after kills of shippers and engines, while files grow, shrink and are replaced."""

from __future__ import annotations

import os
import random
import threading
import time

from tests.fleet.shipped_runs import (
    append,
    claimed_by,
    engine_bytes,
    engine_points,
    file_points,
    id_of,
    make_run,
    newest_bytes,
    record_bytes,
    ship,
    step_line,
)
from tests.fork_server import start_python
from tests.lengths import longer
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.runfolder.layout import rank_file

SHIPPER = ("toolkit.telemetry.fleet.shipping.shipper", "toolkit.telemetry")


class Writers:
    """The real logger and the files of other ranks, written until `stop`."""

    def __init__(self, logs):
        self.folder = make_run(logs, "by hand", 5)
        self.log = TelemetryLogger(
            "logged", log_dir=logs, log_every=1, flush_interval=0.05, diagnostics=False
        )
        self.log.log_start()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self):
        step = 5
        while not self._stop.wait(0.03):
            self.log.log_step(step, train_loss=1.0 / step, acc=float(step))
            append(self.folder, [step], odd=float("nan") if step % 7 else step / 3)
            append(self.folder, range(step, step + 3), rank=1 + step % 3, sec_per_step=0.1)
            step += 1

    def stop(self):
        self._stop.set()
        self._thread.join()
        self.log.close()
        return [self.folder, self.log.run_folder]


def test_kills_of_shippers_lose_double_and_spoil_nothing(own_engine, logs, tmp_path, record_property):
    chance = random.Random(17)
    kills = longer(7, 200)
    replaced = make_run(logs, "replaced", 20)
    writers = Writers(logs)
    between = 0
    try:
        for number in range(kills):
            marker = tmp_path / f"between {number}" if number % 3 == 0 else None
            shippers = [start_shipper(own_engine, logs, number, marker)]
            if number % 5 == 4:
                shippers.append(start_shipper(own_engine, logs, 1000 + number, None))
            deadline = time.monotonic() + 120.0
            pause = chance.uniform(0.05, 0.6)
            time.sleep(pause)
            while marker is not None and shippers[0].poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            for process in shippers:
                process.kill()
                process.wait()
            between += marker is not None and marker.exists()
            if number % 3 == 1:
                change(replaced, chance)
    finally:
        folders = writers.stop()

    final = ship(own_engine, logs)
    assert final.verify() == []
    connection = Engine(own_engine.address())
    for folder in folders:
        assert_same(connection, folder)
    assert newest_bytes(connection, id_of(replaced)) == record_bytes(replaced)["metrics.jsonl"]
    assert between >= kills // 5
    rows = connection.rows("SELECT count() FROM records")[0][0]
    record_property(
        "measured",
        f"{kills} kills of shippers, {between} of them between data and commit, "
        f"{rows} rows, 0 lost, doubled or wrong",
    )


def change(folder, chance):
    path = folder / "metrics.jsonl"
    kind = chance.randrange(3)
    if kind == 0:
        os.truncate(path, chance.randrange(path.stat().st_size + 1))
    elif kind == 1:
        half = folder / "half"
        half.write_bytes(
            b"".join(step_line(step, other=chance.random()) for step in range(chance.randrange(1, 60)))
        )
        os.replace(half, path)
    append(folder, range(100, 105), more=chance.random())


def start_shipper(engine, logs, seed, marker, **how):
    arguments = [str(engine.address()), logs, seed, *([marker] if marker else [])]
    return start_python(["-m", "tests.fleet.shipping_child", *arguments], SHIPPER, always_fork=True, **how)


def assert_same(connection, folder):
    run_id = id_of(folder)
    ranks = connection.rows(f"SELECT DISTINCT rank FROM commits WHERE run_id = {quote(run_id)} ORDER BY rank")
    found = engine_bytes(connection, run_id)
    assert found == {(rank, 1): rank_file(folder, rank).read_bytes() for (rank,) in ranks}
    for (rank,) in ranks:
        assert engine_points(connection, run_id, rank) == file_points(rank_file(folder, rank))
    assert len(ranks) == len(record_bytes(folder))


def test_kills_of_an_engine_lose_double_and_spoil_nothing(own_engine, logs, record_property):
    chance = random.Random(18)
    kills = longer(2, 20)
    shipper = start_shipper(own_engine, logs, 3, None)
    writers = Writers(logs)
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.1, 0.6))
            own_engine.stop()
            own_engine.start()
            assert shipper.poll() is None
    finally:
        shipper.kill()
        shipper.wait()
        folders = writers.stop()

    ship(own_engine, logs)
    assert ship(own_engine, logs).verify() == []
    connection = Engine(own_engine.address())
    for folder in folders:
        assert_same(connection, folder)
    record_property("measured", f"{kills} kills of an engine, 0 lost, doubled or wrong")


def test_kills_of_shippers_that_share_a_file_system_lose_and_double_nothing(
    own_engine, logs, record_property
):
    kills = longer(2, 50)
    ask = Engine(own_engine.address())
    writers = Writers(logs)
    running = {}

    def start(number):
        node = f"node{number}"
        running[node] = start_shipper(
            own_engine, logs, number, None, env={**os.environ, "TELEMETRY_NODE": node}
        )

    try:
        for number in range(3):
            start(number)
        for number in range(3, 3 + kills):
            holder = wait_until(lambda: (node := claimed_by(ask, writers.folder)) in running and node)
            running[holder].kill()
            running.pop(holder).wait()
            start(number)
    finally:
        folders = writers.stop()
        for process in running.values():
            process.kill()
            process.wait()

    assert ship(own_engine, logs).verify() == []
    for folder in folders:
        assert_same(ask, folder)
    record_property(
        "measured",
        f"{kills} kills of the shipper that had the runs, three at a time, 0 lost, doubled or wrong",
    )
