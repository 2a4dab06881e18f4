"""Jobs of all kinds share a few threads; each takes its turns one after the other, and none is missed."""

import itertools
import math
import threading
import time

import pytest

from tests.waiting import PATIENCE_S
from toolkit.telemetry.core import background as module
from toolkit.telemetry.core.background import MACHINE, background_job, own_thread_job


@pytest.fixture(autouse=True)
def _workers(monkeypatch):
    """Have background threads of this test alone."""
    monkeypatch.setattr(module, "_workers", {})


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
        self.count = 0
        self.pause_s = pause_s
        self.last = last

    def __call__(self):
        self.count += 1
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


def test_a_pause_is_kept_however_short_it_is():
    began = []

    def turn():
        began.append(time.monotonic())
        return None if len(began) == 20 else 0.01

    assert started(turn).join(PATIENCE_S)
    assert min(after - before for before, after in itertools.pairwise(began)) > 0.004
