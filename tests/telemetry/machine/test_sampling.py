from __future__ import annotations

import os
import threading
import time

import pytest

from tests.waiting import wait_until
from toolkit.telemetry.core.background import FILES, background_job
from toolkit.telemetry.core.clock import ManualClock, SystemClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.samplers import sampling as sampling_module
from toolkit.telemetry.logger.machine.samplers.registry import default_samplers
from toolkit.telemetry.logger.machine.samplers.sampler import NothingToSample
from toolkit.telemetry.logger.machine.samplers.sampling import SystemSampling

PATIENCE_S = 60.0


class Steady:
    """Answers with a count of how often it was asked."""

    def __init__(self, name="steady", metric="asked"):
        self.name = name
        self.metric = metric
        self.asked = 0
        self.closed_on: str | None = None
        self.asked_on: str | None = None
        self.on_a_daemon = False
        self.asked_at: list[float] = []

    def sample(self):
        self.asked += 1
        self.asked_at.append(time.monotonic())
        self.asked_on = threading.current_thread().name
        self.on_a_daemon = threading.current_thread().daemon
        return {self.metric: self.asked}

    def close(self):
        self.closed_on = threading.current_thread().name


class Hanging(Steady):
    """Answers `answers` times and then not any more, until it is let go."""

    def __init__(self, name="hanging", answers=1):
        super().__init__(name, "hanging_asked")
        self.answers = answers
        self.hangs = threading.Event()
        self.released = threading.Event()

    def sample(self):
        if self.asked >= self.answers:
            self.hangs.set()
            self.released.wait(100)
        return super().sample()


class Failing(Steady):
    def sample(self):
        super().sample()
        raise RuntimeError("the driver is broken")


class Absent(Steady):
    def sample(self):
        super().sample()
        raise NothingToSample("no such hardware")


@pytest.fixture(autouse=True)
def _other_thread():
    """Have a thread of another kind, as every logger has: it sees to it that one that hangs is replaced."""
    over = threading.Event()
    job = background_job("telemetry-other", lambda: None if over.is_set() else 0.1, FILES)
    job.start()
    yield
    over.set()
    assert job.join(PATIENCE_S)


@pytest.fixture
def quick(monkeypatch):
    """Sample as often as asked, so that the tests need not wait for seconds."""
    monkeypatch.setattr(sampling_module, "SHORTEST_INTERVAL_S", 0.01)


def start(*samplers, interval_s=0.01, clock=None, guard=None):
    system = SystemSampling(
        samplers, interval_s=interval_s, clock=clock or SystemClock(), guard=guard or Guard()
    )
    system.start()
    return system


def test_sampling_never_goes_faster_than_once_a_second():
    steady = Steady()
    system = start(steady, interval_s=0.001)

    wait_until(lambda: len(steady.asked_at) >= 3)
    system.stop(PATIENCE_S)

    assert steady.asked_at[-1] - steady.asked_at[0] > 1.4


def test_each_source_is_asked_and_closed_on_a_daemon_thread_that_has_its_name_meanwhile(quick):
    one, two = Steady("one"), Steady("two")
    system = start(one, two)
    wait_until(lambda: one.asked_on and two.asked_on)

    system.stop(PATIENCE_S)

    assert (one.asked_on, two.asked_on) == ("telemetry-sampler-one", "telemetry-sampler-two")
    assert one.on_a_daemon
    assert two.on_a_daemon
    assert one.closed_on == one.asked_on


def test_a_hung_source_delays_no_one_and_is_named(quick):
    clock = ManualClock()
    steady, hanging = Steady(), Hanging()
    system = start(steady, hanging, clock=clock)
    assert hanging.hangs.wait(PATIENCE_S)
    answered_once = "hanging_asked" in system.latest()
    clock.advance(60)
    wait_until(lambda: "asked" in system.latest() and system.stale() == ["hanging"])

    stale, latest = system.stale(), system.latest()
    began = time.monotonic()
    system.stop(0.2)
    took = time.monotonic() - began
    hanging.released.set()

    assert answered_once
    assert stale == ["hanging"]
    assert "hanging_asked" not in latest, "a value of long ago is not the latest"
    assert took < 30


def test_old_values_run_out(quick):
    clock = ManualClock()
    steady = Steady()
    # So long that it is not asked again, however long the test takes.
    system = start(steady, interval_s=1000.0, clock=clock)
    wait_until(lambda: system.latest())
    clock.advance(3000.9)
    still_fresh = system.latest()
    clock.advance(0.2)

    latest = system.latest()
    system.stop(PATIENCE_S)

    assert still_fresh == {"asked": 1}
    assert latest == {}


def test_a_source_that_fails_five_times_in_a_row_rests(quick):
    guard = Guard()
    failing = Failing()
    system = start(failing, guard=guard)
    wait_until(lambda: failing.asked == 5)
    time.sleep(0.1)

    began = time.monotonic()
    system.stop(PATIENCE_S)
    took = time.monotonic() - began

    assert failing.asked == 5
    assert guard.counts == {"sampling steady: RuntimeError": 5}
    assert took < 30, "a rest ends when sampling does"


def test_a_source_with_nothing_to_sample_ends_quietly(quick):
    guard = Guard()
    absent = Absent("absent")
    system = start(absent, guard=guard)

    wait_until(lambda: absent.closed_on)

    assert absent.asked == 1
    assert system.stale() == []
    assert guard.total == 0
    system.stop(PATIENCE_S)


def test_a_source_that_raises_while_it_is_closed_is_counted(quick):
    class Clinging(Steady):
        def close(self):
            raise RuntimeError("no")

    guard = Guard()
    system = start(Clinging("clinging"), guard=guard)
    wait_until(lambda: system.latest())

    system.stop(PATIENCE_S)

    assert guard.counts == {"closing the clinging sampler: RuntimeError": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_neither_hangs_nor_samples(quick):
    system = start(Steady(), Hanging())
    wait_until(lambda: system.latest())

    child = os.fork()
    if child == 0:
        system.latest()
        system.stale()
        system.stop(5)
        os._exit(7)
    _, status = os.waitpid(child, 0)
    system.stop(0.1)

    assert os.waitstatus_to_exitcode(status) == 7


def test_the_default_sources_say_something_about_this_machine(tmp_path):
    guard = Guard()
    system = start(*default_samplers(tmp_path, guard), guard=guard, interval_s=1)

    wait_until(lambda: {"cpu_mem_rss_mb", "disk_free_gb"} <= set(system.latest()))
    system.stop(PATIENCE_S)

    assert guard.counts == {}
