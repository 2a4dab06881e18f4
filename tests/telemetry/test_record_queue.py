"""Records are numbered in the order of the calls, never overtake one that waits, and are counted if lost."""

import json
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.telemetry.logged import Arriving
from toolkit.telemetry.logger.records import record_queue as intake_module
from toolkit.telemetry.logger.records.device_scalars import PendingScalar
from toolkit.telemetry.logger.records.record_queue import RecordQueue
from toolkit.telemetry.runfolder.journal.head import Owner
from toolkit.telemetry.runfolder.journal.journal import Journal

SEGMENT = 8192
OWNER = Owner(run_id="r", session=2, started=1.5)


class Taken:
    """An intake, its journal, and all that a writer took out."""

    def __init__(self, *, queue_max_bytes=64 * 1024):
        self.memory = Arriving()
        self.lines = []
        self.record_queue = RecordQueue(
            Journal.create([], Path("metrics.jsonl"), OWNER, segment_bytes=SEGMENT),
            first_seq=0,
            session=2,
            rank=0,
            queue_max_bytes=queue_max_bytes,
            wake=lambda: None,
        )

    def put(self, event="step", elapsed=0.0, pending=(), **fields):
        """Take a record that waits for the numbers named `pending`."""
        waits = {name: PendingScalar(self.memory, name, "f32") for name in pending}
        self.record_queue.put(event, 1000.0 + elapsed, elapsed, fields, waits)

    def drain(self):
        """Let the writer take everything that is ready, and return all it ever took."""
        while (batch := self.record_queue.take_batch()) is not None:
            self.lines += batch.splitlines()
            self.record_queue.batch_written()
        return [json.loads(line) for line in self.lines]

    def fill(self, **fields):
        """Put records while no one takes them out, until one is dropped; return how many were put."""
        count = 0
        while not self.record_queue.dropped_total:
            self.put(n=count, **fields)
            count += 1
        return count


@pytest.fixture
def taken():
    return Taken()


def column(records, name):
    return [record.get(name) for record in records]


# ---------------------------------------------------------------- numbers and stamps


def test_a_line_that_waits_in_memory_takes_no_more_of_it_than_its_length():
    taken, count = Taken(queue_max_bytes=1 << 24), 20_000
    before = psutil.Process().memory_info().rss
    for number in range(count):
        taken.put(n=number)

    assert len(taken.record_queue.lines_in_memory) > 70 * count
    # orjson makes each line in 8 KiB: they were 160 MB.
    assert psutil.Process().memory_info().rss - before < 40_000_000


# ---------------------------------------------------------------- numbers that a device has yet to deliver


def test_a_device_that_never_delivers_is_waited_for_a_minute_and_then_noted(taken):
    taken.put(elapsed=0.0, a=1, pending=["never"])
    taken.put(elapsed=1.0, b=2)
    taken.record_queue.settle(59.0)

    assert taken.drain() == []

    taken.record_queue.settle(60.5)
    first, second = taken.drain()

    assert (first["a"], list(first["unencodable"])) == (1, ["never"])
    assert second["b"] == 2


def test_too_many_records_that_wait_are_dropped_and_counted_exactly(taken, monkeypatch):
    monkeypatch.setattr(intake_module, "_MAX_WAITING", 50)
    for n in range(80):
        taken.put(n=n, pending=["late"])
    taken.memory.values["late"] = 1.0
    taken.record_queue.settle(0.0)
    taken.put(n=80)
    found = taken.drain()
    lost = [record for record in found if record["event"] == "lost"]

    assert taken.record_queue.dropped_total == 30 == sum(record["records"] for record in lost)
    assert len(found) - len(lost) == 51
    assert len(set(column(found, "seq"))) == len(found)


def test_what_explains_a_run_is_kept_however_many_wait(taken, monkeypatch):
    monkeypatch.setattr(intake_module, "_MAX_WAITING", 50)
    for n in range(60):
        taken.put(n=n, pending=["never"])
    taken.put("error", message="the reason")
    taken.put("end", status="failed")
    taken.record_queue.settle(0.0, give_up=True)

    assert [record["event"] for record in taken.drain() if record["event"] in ("error", "end")] == [
        "error",
        "end",
    ]


def test_values_that_a_record_of_another_thread_left_out_are_not_reported_twice(taken):
    reported = []
    taken.record_queue._on_left_out = lambda values: reported.append(threading.current_thread().name)
    other = threading.Thread(target=taken.put, kwargs={"n": 1})
    with taken.record_queue.lock:
        other.start()
        # Long enough for it to come to the lock.
        time.sleep(0.2)
        taken.put(**{f"metric_{number}": 0.5 for number in range(10_000)})
    other.join()

    assert reported == [threading.current_thread().name]


# ---------------------------------------------------------------- a disk that takes nothing


def test_what_explains_a_run_is_kept_when_metrics_no_longer_are(taken):
    dropped_from = taken.fill() - 1
    for event in ("error", "control_change", "finding", "end"):
        taken.put(event)
    taken.put("step", n="dropped")
    found = taken.drain()

    assert column(found, "event")[-4:] == ["error", "control_change", "finding", "end"]
    assert taken.record_queue.dropped_total == 2
    assert dropped_from not in [record.get("n") for record in found]
