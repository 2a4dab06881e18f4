"""All ranks take an action at the same step, or none does: in every order of events, and in real process groups."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit.telemetry
from tests.fork_server import A_TRAINING, start_python
from tests.lengths import in_make_faults, is_long, longer
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.control.consensus import StepConsensus

distributed = pytest.importorskip("torch.distributed")


def make_ranks(size, store=None, clock=None, **options):
    store = store or distributed.HashStore()
    clock = clock or ManualClock()
    return [
        StepConsensus(store, rank, size, clock=clock, prefix="t", pause=clock.advance, **options)
        for rank in range(size)
    ]


def step_all(ranks, step):
    """Let every rank come to `step`, and return what each one takes there."""
    return [rank.due(step) for rank in ranks]


def poll_all(ranks):
    for rank in ranks:
        rank.poll()


def proposed(size, *, polled=True, **options):
    """Return ranks that have made two steps, and whose first one proposes a stop; all know of it if they are polled."""
    ranks = make_ranks(size, **options)
    for step in range(2):
        step_all(ranks, step)
    ranks[0].propose("stop", sec_per_step=1.0)
    if polled:
        poll_all(ranks)
    return ranks


# ---------------------------------------------------------------- the plain course of things


def test_the_proposal_lies_about_four_seconds_ahead():
    (rank,) = make_ranks(1)
    rank.due(0)
    rank.due(1)
    rank.propose("save", sec_per_step=0.01)
    rank.poll()

    assert [step for step in range(2, 1000) if rank.due(step)] == [401]


def test_a_rank_that_does_not_answer_keeps_all_from_taking_it():
    ranks, taken = proposed(3, polled=False), []
    for step in range(2, 1000):
        ranks[0].poll()
        ranks[1].poll()
        taken += step_all(ranks, step)

    assert not any(taken)
    assert ranks[0].take_given_up() == [("stop", "not every rank answered in time")]
    assert ranks[0].take_given_up() == []


@pytest.mark.parametrize("other_steps", [lambda step: step % 3 == 0, lambda step: step % 2 == 0])
def test_ranks_that_log_different_steps_take_nothing(other_steps):
    ranks = make_ranks(2)
    taken = []
    ranks[0].propose("stop", sec_per_step=1.0)
    for step in range(200):
        taken.append(ranks[0].due(step))
        if other_steps(step):
            taken.append(ranks[1].due(step))
        poll_all(ranks)

    assert not any(taken)
    assert ranks[0].take_given_up() == [("stop", "rank 1 logs other steps than rank 0")]


# ---------------------------------------------------------------- waiting, ending, failing


def test_a_rank_that_is_first_waits_a_bounded_time_and_then_calls_it_off_for_all():
    clock = ManualClock()
    ranks = proposed(3, polled=False, clock=clock, wait_s=5.0)
    ranks[0].poll()
    ranks[1].poll()  # acknowledges; rank 2 does not
    started = clock.monotonic()
    first = [ranks[1].due(step) for step in range(2, 10)]

    assert not any(first)
    assert 5.0 <= clock.monotonic() - started < 5.1

    ranks[2].poll()  # too late
    others = [rank.due(step) for step in range(2, 10) for rank in (ranks[0], ranks[2])]

    assert not any(others)


def test_the_end_of_a_rank_calls_off_what_is_undecided():
    for ended in (0, 1):
        ranks = proposed(2)
        ranks[ended].close()
        ranks[ended].close()
        rest = ranks[1 - ended]

        assert not any(rest.due(step) for step in range(2, 20))


def test_rank_0_stays_until_its_commit_was_read():
    clock = ManualClock()
    ranks = proposed(2, clock=clock)
    assert [ranks[0].due(step) for step in range(2, 7)][-1] == ("stop",)
    pauses = []

    def other_rank_arrives(seconds):
        clock.advance(seconds)
        pauses.append(seconds)
        if len(pauses) == 3:
            assert [ranks[1].due(step) for step in range(2, 7)][-1] == ("stop",)

    ranks[0]._pause = other_rank_arrives
    ranks[0].close()

    assert len(pauses) == 3


def test_rank_0_does_not_stay_for_ever():
    clock = ManualClock()
    ranks = proposed(2, clock=clock)
    for step in range(2, 7):
        ranks[0].due(step)
    started = clock.monotonic()
    ranks[0].close(timeout_s=2.0)

    assert 2.0 <= clock.monotonic() - started < 2.1


def test_a_store_that_is_gone_does_not_reach_the_loop():
    class Gone:
        def __getattr__(self, name):
            def fail(*args):
                raise RuntimeError("Connection reset by peer")

            return fail

    guard = Guard()
    ranks = proposed(2, guard=guard)
    for rank in ranks:
        rank._store = Gone()
    taken = [step_all(ranks, step) for step in range(2, 10)]
    for rank in ranks:
        rank.close()

    assert not any(any(actions) for actions in taken)
    assert guard.total >= 2


# ---------------------------------------------------------------- in every order


class World:
    """Ranks whose loops and background threads take turns at random, even within a call.

    Before each operation on the store, and after each time a lock is let go, any other thread of any rank may make a
    move, just as real ones could. With `lockstep` a loop ends no step before all others have begun it, as an
    all_reduce sees to.
    """

    def __init__(self, seed, size, lockstep, failing=False):
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.store = distributed.HashStore()
        self.lockstep = lockstep
        self.failing = failing
        self.entered = [-1] * size
        self.done = [-1] * size
        self.taken = [{} for _ in range(size)]
        self.busy = set()
        self.quiet = False
        self.ranks = []
        for rank in range(size):
            consensus = StepConsensus(
                ExploringStore(self, rank),
                rank,
                size,
                clock=self.clock,
                prefix="t",
                pause=self.pause,
                wait_s=1.0,
            )
            consensus._lock = ExploringLock(self)
            self.ranks.append(consensus)

    def pause(self, seconds):
        self.clock.advance(seconds)
        self.move()

    def maybe_move(self):
        if not self.quiet and len(self.busy) < 2 * len(self.ranks) and self.random.random() < 0.3:
            self.move()

    def move(self):
        rank = self.random.randrange(len(self.ranks))
        if self.random.random() < 0.3:
            self.poll(rank)
        else:
            self.step(rank)

    def poll(self, rank):
        if ("poll", rank) in self.busy:
            return
        self.busy.add(("poll", rank))
        try:
            self.ranks[rank].poll()
        except ConnectionError:
            pass
        finally:
            self.busy.remove(("poll", rank))

    def step(self, rank):
        if ("step", rank) in self.busy or "stop" in self.taken[rank]:
            return
        step = self.done[rank] + 1
        if self.lockstep and any(done < step - 1 for done in self.done):
            return
        if not self.lockstep and step > min(self.done) + 8:
            return
        self.busy.add(("step", rank))
        self.entered[rank] = step
        for action in self.ranks[rank].due(step):
            assert action not in self.taken[rank], "taken twice"
            self.taken[rank][action] = step
        self.done[rank] = step
        self.busy.remove(("step", rank))

    def run(self, moves):
        wishes = {self.random.randrange(moves // 3): "save", self.random.randrange(moves // 2): "stop"}
        for number in range(moves):
            if number in wishes:
                self.ranks[0].propose(wishes[number], self.random.choice([0.1, 0.5, 1.0]))
            self.move()
        # Whoever has a step left to make makes it: an action half taken would show now.
        self.quiet = True
        for _ in range(400):
            for rank in range(len(self.ranks)):
                self.step(rank)


class ExploringStore:
    """A store before whose operations others may come."""

    def __init__(self, world, rank):
        self.world = world
        self.rank = rank

    def __getattr__(self, name):
        operation = getattr(self.world.store, name)

        def explore(*args):
            # A store that fails fails in the background; what the loop reads is what decides.
            fails = (
                self.world.failing
                and ("step", self.rank) not in self.world.busy
                and self.world.random.random() < 0.1
            )
            self.world.maybe_move()
            if fails and self.world.random.random() < 0.5:
                raise ConnectionError("before")
            result = operation(*args)
            if fails:
                raise ConnectionError("after")
            return result

        return explore


class ExploringLock:
    """A lock after which others may come."""

    def __init__(self, world):
        self.world = world

    def __enter__(self):
        return None

    def __exit__(self, *details):
        self.world.maybe_move()


@pytest.mark.parametrize("failing", [False, True], ids=["store-works", "store-fails-now-and-then"])
@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "drifting"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_any_order_all_ranks_take_an_action_at_the_same_step_or_none_does(size, lockstep, failing):
    taken_by_all = 0
    for seed in range(longer(25, 100)):
        world = World(seed, size, lockstep, failing)
        world.run(moves=600)

        for action in ("save", "stop"):
            steps = [taken.get(action) for taken in world.taken]
            assert len(set(steps)) == 1, (seed, action, steps)
            taken_by_all += steps[0] is not None

    assert taken_by_all > longer(10, 50), "the test shows little if nothing is ever taken"


# ---------------------------------------------------------------- real process groups

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [2, 3] if is_long() else [2])
def test_real_ranks_with_an_all_reduce_a_step_stop_together(tmp_path, size):
    rounds = longer(4, 8)
    source = str(Path(toolkit.telemetry.__file__).parents[2])
    ranks = [
        start_python(
            [
                PROGRAMS / "agree_on_steps.py",
                rank,
                size,
                tmp_path / "address",
                rounds,
                tmp_path / f"{rank}.json",
            ],
            A_TRAINING,
            env={**os.environ, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [process.communicate(timeout=250)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()

    assert [process.returncode for process in ranks] == [0] * size, "\n".join(errors)
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    assert [action for action, _ in results[0]["taken"]] == [f"stop-{n}" for n in range(rounds)]
    assert all(result["taken"] == results[0]["taken"] for result in results)
    assert len({result["steps"] for result in results}) == 1


@in_make_faults
@pytest.mark.slow
def test_a_store_that_is_silent_at_the_end_does_not_change_how_a_process_ends():
    ended = subprocess.run(
        [sys.executable, PROGRAMS / "end_while_the_store_is_silent.py"],
        env={**os.environ, "PYTHONPATH": str(Path(toolkit.telemetry.__file__).parents[2])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
    )

    assert ended.returncode == 7, ended.stderr
