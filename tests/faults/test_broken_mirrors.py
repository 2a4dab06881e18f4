"""Mirrors that raise, block or end their thread: the run does not notice, and its folder says so."""

from __future__ import annotations

import threading
import time

import pytest

from tests.faults.aftermath import events, whole_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.sink import MemorySink


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


def test_a_mirror_that_raises_is_told_of_once_switched_off_and_harms_nobody(tmp_path, caplog):
    raising, other = RaisingSink(), MemorySink()
    slowest = 0.0
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, sinks=[raising, other], system=False) as log:
        for step in range(500):
            began = time.perf_counter()
            log.log_step(step, train_loss=1.0)
            slowest = max(slowest, time.perf_counter() - began)
            if step % 50 == 0:
                log.flush(0.1)

    assert slowest < 1.0
    assert raising.calls == 5
    assert raising.closed
    assert caplog.text.count("writing to raising failed (RuntimeError: the service is down)") == 1
    records = whole_run(tmp_path / "run", steps=range(500))
    assert [record["seq"] for record in other.records] == [record["seq"] for record in records]
    messages = [record["message"] for record in events(records, "error") if "raising" in record["doing"]]
    assert any("the service is down" in message for message in messages)
    assert any("raising is off" in message for message in messages)
    assert events(records, "end")[0]["telemetry_errors"] >= 5


@pytest.mark.parametrize("blocks_in", ["write", "close"])
def test_a_mirror_that_blocks_for_ever_holds_up_neither_the_loop_nor_its_end(tmp_path, caplog, blocks_in):
    blocking, other = BlockingSink(blocks_in), MemorySink()
    options = {"log_every": 1, "close_timeout": 2.0, "system": False}
    log = TelemetryLogger("run", log_dir=tmp_path, sinks=[blocking, other], **options)
    slowest = 0.0
    try:
        for step in range(4_000):
            began = time.perf_counter()
            log.log_step(step, train_loss=1.0)
            slowest = max(slowest, time.perf_counter() - began)
            if step % 500 == 0:
                time.sleep(0.002)
        if blocks_in == "write":
            assert blocking.is_blocked.wait(5.0)
        began = time.monotonic()
        log.close()
        closing = time.monotonic() - began
    finally:
        blocking.answers.set()

    assert slowest < 1.0
    assert closing < 2.0 + 4.0
    assert "blocking did not take everything in time" in caplog.text
    records = whole_run(tmp_path / "run", steps=range(4_000))
    assert [record["seq"] for record in other.records] == [record["seq"] for record in records]


def test_a_mirror_that_fails_now_and_then_gets_everything_in_the_end(tmp_path):
    flaky = FlakySink()
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, sinks=[flaky], system=False) as log:
        for step in range(300):
            log.log_step(step, train_loss=1.0)
            if step % 50 == 0:
                log.flush(0.3)
        log.flush(3.0)
        log.flush(3.0)

    records = whole_run(tmp_path / "run", steps=range(300))
    got = {record["seq"] for record in flaky.records}
    assert set(range(300)) <= got
    assert len(got) == len(flaky.records), "and nothing twice"
    assert not [record for record in events(records, "error") if "is off" in record["message"]]


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
        time.sleep(1.0)
        began = time.monotonic()
        log.flush()
        print(f"flushing={time.monotonic() - began}")
        log.close()
        sys.exit(7)
        """,
        tmp_path,
    ).end()

    assert ended.code == 7, ended.err
    assert ended.number("flushing") < 2.0
    records = whole_run(tmp_path / "run", steps=range(100))
    assert [record["message"] for record in events(records, "error")] == [
        "exiting is off: it ended its own thread"
    ]
