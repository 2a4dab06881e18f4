"""Mirrors that raise, block or end their thread: the run does not notice, and its folder says so."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS
from tests.faults.crash_checks import whole_run, with_rows
from tests.faults.faulty_disk import FaultyDisk
from tests.lengths import in_make_faults, longer
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.sink import MemorySink


class RaisingSink:
    name = "raising"

    def __init__(self) -> None:
        self.calls = 0
        self.closed = False

    def write(self, batch):
        self.calls += 1
        raise RuntimeError("the service is down")

    def close(self):
        self.closed = True
        raise RuntimeError("and stays down")


class BlockingSink:
    name = "blocking"

    def __init__(self, blocks_in: str) -> None:
        self.answers = threading.Event()
        self.is_blocked = threading.Event()
        self._blocks_in = blocks_in

    def write(self, batch):
        self._block("write")

    def close(self):
        self._block("close")

    def _block(self, call):
        if call == self._blocks_in:
            self.is_blocked.set()
            self.answers.wait()


class FlakySink(MemorySink):
    """Fails every other time."""

    def __init__(self) -> None:
        super().__init__("flaky")
        self.calls = 0

    def write(self, batch):
        self.calls += 1
        if self.calls % 2:
            raise OSError("try again")
        super().write(batch)


def test_a_mirror_that_raises_is_reported_once_switched_off_and_harms_no_one(tmp_path, caplog):
    raising, other = RaisingSink(), MemorySink()
    slowest = 0.0
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, sinks=[raising, other], system=False) as log:
        for step in range(500):
            began = time.perf_counter()
            log.log_step(step, train_loss=1.0)
            slowest = max(slowest, time.perf_counter() - began)
            if step % 50 == 0:
                log.flush(0.1)

        def is_reported():
            # Each flush wakes the mirror, which says on its own thread, after five failures, that it is off.
            log.flush(0.1)
            return b"raising is off" in (tmp_path / "run" / "metrics.jsonl").read_bytes()

        wait_until(is_reported)

    assert slowest < LONGEST_PAUSE_S
    assert raising.calls == 5
    assert raising.closed
    assert caplog.text.count("writing to raising failed (RuntimeError: the service is down)") == 1
    records = whole_run(tmp_path / "run", steps=range(500))
    assert [record["seq"] for record in other.records] == [record["seq"] for record in records]
    messages = [record["message"] for record in with_event(records, "error") if "raising" in record["doing"]]
    assert any("the service is down" in message for message in messages)
    assert any("raising is off" in message for message in messages)
    assert with_event(records, "end")[0]["telemetry_errors"] >= 5


@pytest.mark.parametrize("blocks_in", ["write", "close"])
def test_a_mirror_that_blocks_for_ever_holds_up_neither_the_loop_nor_its_end(tmp_path, caplog, blocks_in):
    blocking, other = BlockingSink(blocks_in), MemorySink()
    options = {"log_every": 1, "close_timeout": 5.0, "system": False}
    log = TelemetryLogger("run", log_dir=tmp_path, sinks=[blocking, other], **options)
    slowest = 0.0
    try:
        for step in range(1_000):
            began = time.perf_counter()
            log.log_step(step, train_loss=1.0)
            slowest = max(slowest, time.perf_counter() - began)
            if step % 125 == 0:
                time.sleep(0.002)
        if blocks_in == "write":
            assert blocking.is_blocked.wait(60.0)
        began = time.monotonic()
        log.close()
        closing = time.monotonic() - began
    finally:
        blocking.answers.set()

    assert slowest < LONGEST_PAUSE_S
    assert closing < 5.0 + LONGEST_PAUSE_S
    assert "blocking did not take everything in time" in caplog.text
    # The blocked one may have used up the time of those after it, which go on by themselves.
    in_all = (tmp_path / "run" / "metrics.jsonl").read_bytes().count(b"\n")
    wait_until(lambda: len(other.records) == in_all)
    in_table = len(with_rows(tmp_path / "run", read_records(tmp_path / "run")))
    wait_until(lambda: (tmp_path / "run" / "metrics.csv").read_bytes().count(b"\n") == 1 + in_table)
    records = whole_run(tmp_path / "run", steps=range(1_000))
    assert [record["seq"] for record in other.records] == [record["seq"] for record in records]


def test_a_mirror_that_fails_now_and_then_still_gets_everything(tmp_path):
    flaky = FlakySink()
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, sinks=[flaky], system=False) as log:
        for step in range(300):
            log.log_step(step, train_loss=1.0)
            if step % 50 == 0:
                log.flush(0.3)
        log.flush(60.0)
        log.flush(60.0)

    records = whole_run(tmp_path / "run", steps=range(300))
    got = {record["seq"] for record in flaky.records}
    assert set(range(300)) <= got
    assert len(got) == len(flaky.records), "and nothing twice"
    assert not [record for record in with_event(records, "error") if "is off" in record["message"]]


def test_a_mirror_that_ends_its_thread_does_not_make_a_flush_wait(tmp_path, start):
    ended = start(
        """
        class ExitingSink:
            name = "exiting"

            def write(self, batch):
                sys.exit("a library that thinks it is a program")

            def close(self):
                pass

        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, sinks=[ExitingSink()])
        for step in range(100):
            log.log_step(step, train_loss=1.0)
        log.flush()
        wait_until(lambda: "telemetry-exiting" not in {thread.name for thread in threading.enumerate()})
        began = time.monotonic()
        log.flush(60)
        print(f"flushing={time.monotonic() - began}")
        log.close()
        sys.exit(7)
        """,
        tmp_path,
    ).end(code=7)

    assert ended.number("flushing") < 30.0, "it did not wait its whole minute"
    records = whole_run(tmp_path / "run", steps=range(100))
    assert [record["message"] for record in with_event(records, "error")] == [
        "exiting is off: it ended its own thread"
    ]


def test_mirrors_that_do_all_the_odd_things_there_are_leave_the_run_and_each_other_alone(
    tmp_path, start, record_property
):
    ended = start(PROGRAMS / "many_broken_mirrors.py", tmp_path).end(150, code=7)

    record_property(
        "measured",
        f"{ended.number('mirrors'):.0f} broken mirrors at once, slowest call {ended.number('slowest') * 1e3:.1f} ms",
    )
    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.number("closing") < 2.0 + 25.0
    records = whole_run(tmp_path / "run", steps=range(500))
    assert with_event(records, "end")[0]["status"] == "finished"
    assert ended.number("good") >= 500
    assert ended.number("in_order") == 1
    reported = {record["message"].partition(" is off")[0] for record in with_event(records, "error")}
    for what in ("an exit", "an interrupt", "an exception of its own kind"):
        assert f"{what} in write" in reported, "a mirror that ended its thread is named"


@pytest.fixture
def full_disk(mount_in_memory):
    disk = mount_in_memory("size=64k")
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    return disk


FAILURES_WAITED_FOR = longer(1, 5)
"""A mirror that fails five times for another reason than its disk is switched off; it rests longer each time."""


@pytest.mark.root
def test_the_real_tensorboard_on_a_full_disk_is_reported_and_the_run_is_whole(
    tmp_path, start, full_disk, record_property
):
    options = {"tensorboard": True, "tensorboard_dir": str(full_disk / "events")}
    # A failure is counted before it is recorded, and at the end of a run there may be no time for that.
    is_recorded = (
        """b'"event":"error"' in open(os.path.join(sys.argv[1], 'run', 'metrics.jsonl'), 'rb').read()"""
    )
    waited_for = f"log.guard.total >= {FAILURES_WAITED_FOR} and {is_recorded}"
    ended = start(PROGRAMS / "real_mirrors.py", tmp_path / "logs", repr(options), waited_for).end(150, code=7)

    record_property("measured", f"slowest call {ended.number('slowest') * 1e3:.1f} ms, 500 of 500 steps kept")
    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.number("closing") < 5.0 + LONGEST_PAUSE_S
    records = whole_run(tmp_path / "logs" / "run", steps=range(500))
    messages = [record["message"] for record in with_event(records, "error")]
    assert any("No space left on device" in message for message in messages), (messages, ended.err)
    assert not any("tensorboard is off" in message for message in messages)


@in_make_faults
def test_the_real_tensorboard_on_a_disk_that_hangs_holds_up_neither_the_loop_nor_its_end(
    tmp_path, start, record_property
):
    disk = FaultyDisk(tmp_path)
    disk.mount()
    try:
        disk.fail({"op": "write", "do": "hang"})
        options = {"tensorboard": True, "tensorboard_dir": str(disk.mounted / "events")}
        child = start(PROGRAMS / "real_mirrors.py", tmp_path / "logs", repr(options), "True")
        closing = float(child.wait_for_line("closing=").partition("=")[2])
        slowest = float(child.wait_for_line("slowest=").partition("=")[2])
        disk.heal()
        ended = child.end(120, code=7)
    finally:
        disk.unmount()

    record_property(
        "measured", f"slowest call {slowest * 1e3:.1f} ms, end {closing:.1f} s, 500 of 500 steps kept"
    )
    assert "tensorboard did not take everything in time" in ended.err, "the disk did not hang"
    assert slowest < LONGEST_PAUSE_S
    assert closing < 2.0 + LONGEST_PAUSE_S
    whole_run(tmp_path / "logs" / "run", steps=range(500))
