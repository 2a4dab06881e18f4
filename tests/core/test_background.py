"""Jobs of all kinds share a few threads; one that hangs, fails or ends its thread affects no other."""

import itertools
import math
import threading
import time

import pytest

from tests.waiting import PATIENCE_S, wait_until
from toolkit.telemetry.core import background as module
from toolkit.telemetry.core.background import FILES, MACHINE, background_job, own_thread_job


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


@pytest.mark.parametrize("helper", ["a thread of another kind", "who waits"])
def test_a_job_that_hangs_holds_up_no_other_of_its_kind(helper):
    hanging, turn, other = Hanging(), Counting(math.inf, last=1), Counting(0.1)
    hung = started(hanging)
    assert hanging.hangs.wait(PATIENCE_S)
    if helper == "who waits":
        assert started(turn).join(PATIENCE_S)
    else:
        of_another_kind = background_job("telemetry-other", other, FILES)
        of_another_kind.start()
        started(turn)
        wait_until(lambda: turn.count)
        let_end(of_another_kind)

    assert not hung.is_over
    hanging.release.set()
    assert hung.join(PATIENCE_S)


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
