"""Chores are done at their pace; one that fails comes again, and one that hangs holds up no training."""

import threading
import time

from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.periodic import PeriodicTasks


def test_each_task_has_its_own_interval():
    clock, done = ManualClock(), []
    tasks = [
        ("often", 1.0, lambda: done.append("often")),
        ("seldom", 5.0, lambda: done.append("seldom")),
    ]
    periodic = PeriodicTasks(tasks, clock=clock, guard=Guard())
    for _ in range(20):
        periodic.tick()
        clock.advance(0.5)

    assert (done.count("often"), done.count("seldom")) == (10, 2)


def test_a_task_that_fails_is_counted_and_retried_and_the_others_run():
    clock, done, guard = ManualClock(), [], Guard()

    def fail():
        raise OSError("disk full")

    periodic = PeriodicTasks(
        [("failing", 1.0, fail), ("working", 1.0, lambda: done.append(1))], clock=clock, guard=guard
    )
    for _ in range(3):
        periodic.tick()
        clock.advance(1.0)

    assert guard.counts == {"failing: OSError": 3}
    assert len(done) == 3


def test_a_task_that_hangs_does_not_delay_the_end():
    hangs, released = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        released.wait(100)

    periodic = PeriodicTasks([("hanging", 1.0, hang)], clock=ManualClock(), guard=Guard())
    periodic.start()
    assert hangs.wait(60)
    began = time.monotonic()
    periodic.close(timeout_s=0.2)

    assert time.monotonic() - began < 30
    released.set()
