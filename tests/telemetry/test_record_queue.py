"""Records are numbered in the order of the calls, never overtake one that waits, and are counted if lost."""

import json
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

    def __init__(self, *, rank=0, queue_max_bytes=64 * 1024, first_seq=0):
        self.woken = 0
        self.memory = Arriving()
        self.lines = []
        self.record_queue = RecordQueue(
            Journal.create([], Path("metrics.jsonl"), OWNER, segment_bytes=SEGMENT),
            first_seq=first_seq,
            session=2,
            rank=rank,
            queue_max_bytes=queue_max_bytes,
            wake=self._wake,
        )

    def _wake(self):
        self.woken += 1

    def put(self, event="step", elapsed=0.0, pending=(), finish=None, **fields):
        """Take a record that waits for the numbers named `pending`."""
        waits = {name: PendingScalar(self.memory, name, "f32") for name in pending}
        self.record_queue.put(event, 1000.0 + elapsed, elapsed, fields, waits, finish=finish)

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


def test_a_rank_other_than_zero_says_which():
    taken = Taken(rank=3)
    taken.put()

    assert column(taken.drain(), "rank") == [3]
    assert not taken.record_queue.is_direct


def test_what_finishing_leaves_out_takes_no_number(taken):
    taken.put(a=1, finish=lambda fields: None)
    taken.put(a=2, finish=lambda fields: {**fields, "done": True})

    assert [(record["seq"], record["a"], record["done"]) for record in taken.drain()] == [(0, 2, True)]


def test_a_line_that_waits_in_memory_takes_no_more_of_it_than_its_length():
    taken, count = Taken(queue_max_bytes=1 << 24), 20_000
    before = psutil.Process().memory_info().rss
    for number in range(count):
        taken.put(n=number)

    assert len(taken.record_queue.lines_in_memory) > 70 * count
    # orjson makes each line in 8 KiB: they were 160 MB.
    assert psutil.Process().memory_info().rss - before < 40_000_000


def test_the_writer_is_woken_once_for_a_lot(monkeypatch):
    monkeypatch.setattr(intake_module, "MUCH", 1000)
    taken = Taken()
    for _ in range(40):
        taken.put(text="x" * 50)
    woken = taken.woken
    taken.drain()
    for _ in range(40):
        taken.put(text="x" * 50)

    assert (woken, taken.woken) == (1, 2)


# ---------------------------------------------------------------- numbers that a device has yet to deliver


def test_a_record_that_waits_is_not_overtaken(taken):
    taken.put(n=0)
    taken.put(n=1, pending=["loss"])
    taken.put(n=2)

    assert column(taken.drain(), "n") == [0]
    assert not taken.record_queue.is_direct
    assert taken.record_queue.is_waiting

    taken.memory.values["loss"] = 0.5
    taken.put(n=3)
    found = taken.drain()

    assert column(found, "n") == [0, 1, 2, 3]
    assert column(found, "seq") == [0, 1, 2, 3]
    assert found[1]["loss"] == 0.5
    assert taken.record_queue.is_direct


def test_a_record_waits_for_all_its_numbers(taken):
    taken.put(pending=["a", "b"])
    taken.memory.values["b"] = 2.0
    taken.record_queue.settle(0.0)

    assert taken.drain() == []

    taken.memory.values["a"] = 1.0
    taken.record_queue.settle(0.0)
    (found,) = taken.drain()

    assert (found["a"], found["b"]) == (1.0, 2.0)


def test_finishing_is_done_in_the_order_of_the_calls(taken):
    seen = []
    for n in range(4):
        taken.put(n=n, pending=[f"p{n}"], finish=lambda fields: seen.append(fields["n"]) or fields)
    taken.memory.values = {f"p{n}": 1.0 for n in (3, 2, 1)}
    taken.record_queue.settle(0.0)

    assert seen == []

    taken.memory.values["p0"] = 1.0
    taken.record_queue.settle(0.0)

    assert seen == [0, 1, 2, 3]


def test_a_device_that_never_delivers_is_waited_for_a_minute_and_then_noted(taken):
    taken.put(elapsed=0.0, a=1, pending=["never"])
    taken.put(elapsed=1.0, b=2)
    taken.record_queue.settle(59.0)

    assert taken.drain() == []

    taken.record_queue.settle(60.5)
    first, second = taken.drain()

    assert (first["a"], list(first["unencodable"])) == (1, ["never"])
    assert second["b"] == 2


def test_giving_up_writes_what_is_there_and_says_what_is_missing(taken):
    taken.memory.values["here"] = 1.0
    taken.put(pending=["here", "never"], unencodable={"other": "object"})
    taken.record_queue.settle(0.0, give_up=True)
    (found,) = taken.drain()

    assert found["here"] == 1.0
    assert found["unencodable"] == {"other": "object", "never": "its device did not deliver it"}
    assert taken.record_queue.is_empty


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


# ---------------------------------------------------------------- a disk that takes nothing


def test_records_are_kept_in_memory_in_their_order_while_the_journal_is_full(taken):
    for n in range(400):
        taken.put(n=n)

    assert taken.record_queue.lines_in_memory
    assert taken.woken > 0

    found = taken.drain()

    assert column(found, "n") == list(range(400))
    assert column(found, "seq") == list(range(400))
    assert not taken.record_queue.lines_in_memory
    assert taken.record_queue.is_direct


def test_what_explains_a_run_is_kept_when_metrics_no_longer_are(taken):
    dropped_from = taken.fill() - 1
    for event in ("error", "control_change", "finding", "end"):
        taken.put(event)
    taken.put("step", n="dropped")
    found = taken.drain()

    assert column(found, "event")[-4:] == ["error", "control_change", "finding", "end"]
    assert taken.record_queue.dropped_total == 2
    assert dropped_from not in [record.get("n") for record in found]


# ---------------------------------------------------------------- from within


def test_a_record_that_is_logged_while_another_is_taken_comes_right_after_it(taken):
    def finish(fields):
        taken.put("within", n=1)
        return fields

    taken.put("outer", n=0, finish=finish)
    taken.put("after", n=2)
    found = taken.drain()

    assert column(found, "event") == ["outer", "within", "after"]
    assert column(found, "seq") == [0, 1, 2]
    assert not taken.record_queue.busy


def test_a_failure_while_finishing_leaves_the_intake_usable(taken):
    def fail(fields):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        taken.put(finish=fail)
    taken.put(n=1, pending=["late"], finish=fail)
    taken.put(n=2, pending=["late"])
    taken.memory.values["late"] = 1.0
    with pytest.raises(RuntimeError):
        taken.record_queue.settle(0.0)
    taken.record_queue.settle(0.0)

    assert not taken.record_queue.busy
    assert column(taken.drain(), "n") == [2]
    assert taken.record_queue.is_direct


def test_a_record_that_comes_once_the_journal_is_closed_is_passed_over(tmp_path):
    journal = Journal.create([tmp_path], tmp_path / "metrics.jsonl", OWNER, segment_bytes=SEGMENT)
    record_queue = RecordQueue(
        journal, first_seq=0, session=1, rank=0, queue_max_bytes=SEGMENT, wake=lambda: None
    )
    journal.close(remove=True)
    record_queue.put("finding", 1.0, 0.0, {})

    assert record_queue.next_seq == 0
