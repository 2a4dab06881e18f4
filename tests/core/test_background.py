"""Jobs of all kinds share a few threads; one that hangs, fails or ends its thread affects no other."""

import math
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.lengths import in_make_faults, longer
from tests.waiting import PATIENCE_S, wait_until
from toolkit.telemetry.core import background as module
from toolkit.telemetry.core.background import FILES, MACHINE, background_job, held_up_disks, own_thread_job


@pytest.fixture(autouse=True)
def _workers(monkeypatch):
    """Have background threads of this test alone."""
    monkeypatch.setattr(module, "_workers", {})
    monkeypatch.setattr(module, "_monitor", None)


class Hanging:
    """A turn that does not end before it is released."""

    def __init__(self):
        self.hangs, self.release = threading.Event(), threading.Event()

    def __call__(self):
        self.hangs.set()
        self.release.wait(PATIENCE_S)


class Counting:
    """A turn that counts, with a pause of `pause_s` after each."""

    def __init__(self, pause_s, last=math.inf):
        self.count, self.names = 0, set()
        self.pause_s = pause_s
        self.last = last

    def __call__(self):
        self.count += 1
        self.names.add(threading.current_thread().name)
        return None if self.count >= self.last else self.pause_s


def shared_job(name, turn):
    return background_job(name, turn, MACHINE)


make = pytest.mark.parametrize("make", [shared_job, own_thread_job])


def started(turn, name="telemetry-test", make=shared_job):
    job = make(name, turn)
    job.start()
    return job


def let_end(*jobs):
    """Have jobs that count take their last turn."""
    for job in jobs:
        job._turn.last = 0
        job.wake()
        assert job.join(PATIENCE_S)


@make
def test_a_job_takes_turns_under_its_name_until_it_is_over(make):
    turn = Counting(0.001, last=5)
    job = started(turn, make=make)

    assert job.join(PATIENCE_S)
    assert turn.count == 5
    assert turn.names == {"telemetry-test"}


@make
def test_who_wakes_a_job_in_the_middle_of_a_turn_gets_another(make):
    turns, first = [], Hanging()

    def turn():
        turns.append(1)
        if len(turns) == 1:
            first()
        return None if len(turns) == 2 else math.inf

    job = started(turn, make=make)
    assert first.hangs.wait(PATIENCE_S)
    job.wake()
    first.release.set()

    assert job.join(PATIENCE_S)


def test_a_job_never_takes_two_turns_at_once():
    inside, most = [], []

    def turn():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.0005)
        inside.pop()
        return None if len(most) >= 200 else math.inf

    job = started(turn)
    others = [started(Counting(0.0)) for _ in range(3)]

    def wake():
        while not job.is_over:
            job.wake()
            time.sleep(0.0001)

    threads = [threading.Thread(target=wake) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert job.join(PATIENCE_S)
    for thread in threads:
        thread.join()
    let_end(*others)

    assert set(most) == {1}


@pytest.mark.parametrize("count", [1, 4, pytest.param(30, marks=in_make_faults)])
def test_jobs_that_hang_hold_up_no_other(count):
    hanging = [Hanging() for _ in range(count)]
    jobs = [started(turn, f"telemetry-hung-{number}") for number, turn in enumerate(hanging)]
    turn = Counting(0.01)
    other = started(turn)
    for one in hanging:
        assert one.hangs.wait(PATIENCE_S)
    seen = turn.count

    wait_until(lambda: turn.count > seen + 3)
    names = {thread.name for thread in threading.enumerate()}
    assert {job.name for job in jobs} <= names, "a stack shows who hangs"
    assert not jobs[0].join(0.01)
    before = threading.active_count()
    for one in hanging:
        one.release.set()
    for job in jobs:
        assert job.join(PATIENCE_S)
    # One that was held up ends once it is not any more.
    wait_until(lambda: threading.active_count() <= before - count)
    let_end(other)


def test_a_disk_that_does_not_answer_is_known_and_jobs_for_another_have_a_thread_of_their_own():
    hanging, turn = Hanging(), Counting(0.001)
    held_up = background_job("telemetry-hung", hanging, FILES, Path("/dead"))
    other = background_job("telemetry-test", turn, FILES, Path("/good"))
    held_up.start()
    other.start()

    wait_until(lambda: held_up_disks() == {Path("/dead")})
    seen = turn.count
    wait_until(lambda: turn.count > seen + 3)
    hanging.release.set()
    assert held_up.join(PATIENCE_S)
    let_end(other)
    assert not held_up_disks()


def test_there_are_no_threads_without_jobs():
    before = set(threading.enumerate())
    for _ in range(20):
        jobs = [started(Counting(0.001, last=2)) for _ in range(3)]
        for job in jobs:
            assert job.join(PATIENCE_S)

    wait_until(lambda: set(threading.enumerate()) <= before)
    assert started(Counting(0.001, last=2)).join(PATIENCE_S), "and there are again with the next"


def test_a_job_that_ends_its_thread_ends_alone(monkeypatch):
    said = []
    monkeypatch.setattr(threading, "excepthook", lambda about: said.append(about.exc_type))

    def fail():
        raise ValueError("not guarded")

    turn = Counting(0.01)
    other = started(turn)
    exiting, failing = started(sys.exit), started(fail)

    assert exiting.join(PATIENCE_S)
    assert failing.join(PATIENCE_S)
    seen = turn.count
    wait_until(lambda: turn.count > seen + 3)
    let_end(other)
    assert set(said) == {SystemExit, ValueError}, "of which the first is ignored by default"


@make
def test_a_thread_that_is_refused_may_be_granted_later(monkeypatch, make):
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        turn = Counting(0.001, last=2)
        job = make("telemetry-test", turn)
        with pytest.raises(RuntimeError):
            job.start()

        assert not job.is_started
        assert not turn.count
    if make is shared_job:
        job.start()
    else:
        job.close(PATIENCE_S)

    assert job.join(PATIENCE_S)
    assert turn.count == 2


def refuse(_):
    raise RuntimeError("can't start new thread")


def test_a_job_runs_on_the_calling_thread_where_there_is_no_other():
    turn = Counting(0.001, last=3)
    job = shared_job("telemetry-test", turn)
    job.close(PATIENCE_S)

    assert job.is_over
    assert turn.names == {threading.current_thread().name}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_its_own_threads_whatever_its_parent_was_doing():
    hanging, counting = Hanging(), Counting(0.0001)
    jobs = [started(hanging), started(counting)]
    wait_until(lambda: counting.count)
    for _ in range(longer(5, 20)):
        child = os.fork()
        if child == 0:
            done = not jobs[1].is_started and started(Counting(0.0001, last=3)).join(PATIENCE_S)
            os._exit(7 if done else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    hanging.release.set()
    assert jobs[0].join(PATIENCE_S)
    let_end(jobs[1])
