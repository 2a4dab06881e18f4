from __future__ import annotations

import itertools
import random

import pytest

from tests.diagnostics.synthetic_runs import clean_run, detect, wait_for_each_other
from tests.lengths import longer
from toolkit.telemetry.diagnostics.examiner import Examiner, examine


def _ranks(seed, count, slow, *, noise=0.05):
    """A run's records with those of its other ranks between them; `slow(rank, step)` is how many times as slow."""
    dice = random.Random(seed)
    for record in clean_run(seed, with_rate=False):
        if record["event"] != "step":
            yield record
            continue
        for rank in range(count):
            took = 0.4 * slow(rank, record["global_step"]) * dice.lognormvariate(0.0, noise)
            mine = {**record, "sec_per_step": took}
            yield {**mine, "rank": rank} if rank else mine


@pytest.mark.parametrize("seed", range(longer(2, 5)))
@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_becomes_slower_is_reported(seed, count, who):
    records = _ranks(seed, count, lambda rank, step: 1.5 if rank == who and step >= 2000 else 1.0)

    (finding,) = detect(records, "straggler")

    assert abs(finding.start_step - 2000) <= 100
    assert 2200 <= finding.noticed_step <= 2400
    assert finding.evidence["rank"] == who
    assert finding.message.startswith(f"Rank {who} takes 1.")


@pytest.mark.parametrize("seed", range(longer(2, 10)))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_ranks_that_are_alike_are_not_reported(seed, noise):
    assert detect(_ranks(seed, 8, lambda rank, step: 1.0, noise=noise), "straggler") == []


def test_ranks_that_are_slow_together_are_not_reported():
    assert detect(_ranks(1, 4, lambda rank, step: 3.0 if step > 2000 else 1.0), "straggler") == []


def test_it_is_over_when_the_rank_keeps_up():
    (finding,) = detect(
        _ranks(1, 4, lambda rank, step: 1.6 if rank == 2 and 1000 <= step < 3000 else 1.0), "straggler"
    )

    assert abs(finding.end_step - 3000) <= 100
    assert finding.resolved_step <= 3300


# ------------------------------------------------------------ ranks that wait for each other

OWN = {"optimizer_update": 0.02, "data_loading": 0.02, "rest": 0.01, "forward": 0.1, "backward": 0.2}
"""Seconds of a step without any wait, in the order in which they come."""


def synchronous(
    count,
    extra=lambda rank, step, part: 0.0,
    *,
    seed=0,
    steps=800,
    log_every=10,
    noise=0.05,
    wait_in="backward",
    timed=tuple(OWN),
    world_size=True,
):
    """Return the step records of ranks that wait for each other in `wait_in`, by rank; rank 0's begin with the start.

    `extra` is how many seconds more a part takes. Only parts that are `timed` are in the records.
    """
    dice = random.Random(seed)
    records = {rank: [] for rank in range(count)}
    records[0].append({"event": "start", "session": 1, **({"world_size": count} if world_size else {})})
    sums = [dict.fromkeys(OWN, 0.0) for _ in range(count)]
    clock = 0.0
    began = clock
    for step in range(1, steps + 1):
        takes = [
            {
                part: own * dice.lognormvariate(0.0, noise) + extra(rank, step, part)
                for part, own in OWN.items()
            }
            for rank in range(count)
        ]
        wait_for_each_other(takes, wait_in)
        for rank, mine in enumerate(takes):
            for part, seconds in mine.items():
                sums[rank][part] += seconds
        clock += max(sum(mine.values()) for mine in takes)
        if step % log_every:
            continue
        for rank in range(count):
            spans = {f"time/{part}": sums[rank][part] for part in timed if part != "rest"}
            record = {"event": "step", "session": 1, "global_step": step, "time": clock, **spans}
            record["sec_per_step"] = (clock - began) / log_every * dice.lognormvariate(0.0, 0.005)
            records[rank].append({**record, "rank": rank} if rank else record)
            sums[rank] = dict.fromkeys(OWN, 0.0)
        began = clock
    return records


def in_turn(records):
    """Return the records of all ranks, each step of one after that of the other."""
    return [
        record for step in itertools.zip_longest(*records.values()) for record in step if record is not None
    ]


def slow_in(part, who, seconds, *, first=1, last=10**9):
    return lambda rank, step, of: seconds if rank == who and of == part and first <= step < last else 0.0


PARTS = {
    "data_loading": "in loading its data since step",
    "forward": "in compute since step",
    "optimizer_update": "in compute since step",
    "rest": "outside of the timed parts of a step",
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("count", "who"), longer([(2, 1), (4, 0)], [(2, 0), (2, 1), (4, 0), (16, 1)]))
def test_a_rank_that_the_others_wait_for_is_named_with_its_slow_part(count, who, part):
    records = synchronous(count, slow_in(part, who, 0.15, first=200))
    steps = [rank[-1]["sec_per_step"] for rank in records.values()]
    (finding,) = detect(in_turn(records), "straggler")

    assert max(steps) < 1.05 * min(steps), "they wait for each other"
    assert finding.evidence["rank"] == who
    assert f"Rank {who} is slower than the others" in finding.message
    assert PARTS[part] in finding.message
    assert finding.metric == ("sec_per_step" if part == "rest" else f"time/{part}")
    assert abs(finding.start_step - 200) <= 100
    assert finding.noticed_step <= 600
    assert finding.evidence["seconds"] == pytest.approx(OWN[part] + 0.15, rel=0.1)
    assert finding.evidence["others"] == pytest.approx(OWN[part], rel=0.3)
    assert finding.evidence["ratio"] == pytest.approx(0.5 / 0.35, rel=0.1)


@pytest.mark.parametrize("wait_in", ["backward", "forward", "rest"])
@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_ranks_that_wait_for_each_other_by_turns_are_alike(wait_in, noise):
    records = synchronous(4, seed=1, noise=noise, wait_in=wait_in, steps=2000)

    assert detect(in_turn(records), "straggler") == []


@pytest.mark.parametrize("count", [2, 4])
def test_who_waits_in_the_forward_pass_for_slow_data_is_not_taken_for_slow(count):
    (finding,) = detect(
        in_turn(synchronous(count, slow_in("data_loading", 1, 0.15), wait_in="forward")), "straggler"
    )

    assert finding.evidence["rank"] == 1
    assert finding.metric == "time/data_loading"


@pytest.mark.parametrize("part", ["data_loading", "forward", "backward"])
def test_who_waits_outside_of_the_timed_parts_is_not_taken_for_slow(part):
    # Gradients that a script exchanges by itself, behind the backward pass.
    order = dict(OWN)
    OWN["rest"] = OWN.pop("rest")
    try:
        records = synchronous(3, slow_in(part, 1, 0.15), wait_in="rest")
    finally:
        OWN.clear()
        OWN.update(order)
    (finding,) = detect(in_turn(records), "straggler")

    assert (finding.evidence["rank"], finding.metric) == (1, f"time/{part}")


def test_data_and_iteration_are_parts_enough_for_slow_data():
    slow = synchronous(4, slow_in("data_loading", 3, 0.15), timed=("data_loading",))
    (finding,) = detect(in_turn(slow), "straggler")

    assert (finding.evidence["rank"], finding.metric) == (3, "time/data_loading")


def test_the_device_s_clock_counts_where_it_was_asked():
    records = synchronous(4)
    for rank in records:
        for record in records[rank]:
            if record["event"] == "step":
                record["device_time/forward"] = 10 * (0.3 if rank == 2 else 0.1)
    (finding,) = detect(in_turn(records), "straggler")

    assert finding.evidence["rank"] == 2
    assert "in compute" in finding.message


def test_a_rank_that_saves_now_and_then_is_not_slow():
    saving = synchronous(
        4, lambda rank, step, part: 5.0 if (rank, part) == (0, "rest") and step % 50 == 0 else 0.0
    )

    assert detect(in_turn(saving), "straggler") == []


@pytest.mark.parametrize("count", longer([4], [4, 8, 32]))
@pytest.mark.parametrize(("share", "who"), [(0.1, 0), (0.3, 2), (1.0, 3)])
def test_a_rank_whose_passes_are_slower_is_named_though_the_backward_pass_hides_most_of_it(count, share, who):
    own = {"forward": share * OWN["forward"], "backward": share * OWN["backward"]}
    records = synchronous(
        count,
        lambda rank, step, part: own.get(part, 0.0) if rank == who and step >= 300 else 0.0,
        steps=620,
        log_every=1,
        noise=0.04,
    )
    (finding,) = detect(in_turn(records), "straggler")

    assert finding.evidence["rank"] == who
    assert finding.metric == "time/forward"
    assert 300 < finding.noticed_step < 600


def _with_saves(records, seconds):
    for rank, mine in records.items():
        for record in mine:
            took = seconds(rank, record.get("global_step", 1))
            if took:
                record["time/checkpoint_save_sync"] = took
    return in_turn(records)


def test_a_rank_whose_checkpoints_take_longer_than_those_of_the_others_is_named():
    def seconds(rank, step):
        slow = 10.0 if rank == 2 and 300 <= step < 600 else 1.0
        return slow if step % 50 == 0 else 0.0

    (finding,) = detect(_with_saves(synchronous(4), seconds), "straggler")

    assert finding.evidence["rank"] == 2
    assert "in saving its checkpoints since step 300: 10 s each, 1 s on the others" in finding.message
    assert finding.resolved_step <= 620


@pytest.mark.parametrize(
    "seconds",
    [
        lambda rank, step: 5.0 if rank == 0 and step % 50 == 0 else 0.0,
        lambda rank, step: (5.0 if rank == 0 else 1.0) if step % 50 == 0 else 0.0,
        lambda rank, step: (0.02 if rank == 1 else 0.01) if step % 50 == 0 else 0.0,
    ],
    ids=["rank 0 saves alone", "rank 0 has more to save", "it costs nothing"],
)
def test_checkpoints_that_differ_by_design_are_not_reported(seconds):
    assert detect(_with_saves(synchronous(4), seconds), "straggler") == []


def test_it_is_resolved_when_the_other_ranks_stop_waiting():
    records = synchronous(4, slow_in("forward", 2, 0.15, first=100, last=900), steps=2000)
    (finding,) = detect(in_turn(records), "straggler")

    assert abs(finding.end_step - 900) <= 100
    assert finding.resolved_step <= 1200


def test_the_order_in_which_the_ranks_are_read_changes_nothing():
    records = synchronous(4, slow_in("data_loading", 2, 0.15, first=300, last=1000), steps=1500)
    start, *zero = records.pop(0)
    usual = examine([start, *in_turn({0: zero, **records})])
    assert [finding.kind for finding in usual] == ["straggler"]

    for seed in range(longer(3, 8)):
        # As files are read: some records of one, then some of another; no rank is read far ahead of the rest.
        dice = random.Random(seed)
        streams = [iter([start, *zero]), *(iter(rank) for rank in records.values())]
        examiner = Examiner()
        examiner.take(itertools.islice(streams[0], 1))
        while chunks := [chunk for chunk in _chunks(streams, dice) if chunk]:
            for chunk in chunks:
                examiner.take(chunk)

        assert examiner.findings() == usual


def _chunks(streams, dice):
    for stream in dice.sample(streams, len(streams)):
        yield list(itertools.islice(stream, dice.randrange(1, 30)))


def test_a_rank_that_never_writes_keeps_the_others_from_nothing():
    records = synchronous(4, slow_in("data_loading", 2, 0.15), steps=1200)
    del records[3]
    (finding,) = detect(in_turn(records), "straggler")

    assert finding.evidence["rank"] == 2


def test_records_of_an_earlier_session_are_not_compared_with_this_one():
    first = synchronous(2, slow_in("data_loading", 1, 0.15))
    second = synchronous(2)
    for rank in second:
        second[rank] = [{**record, "session": 2} for record in second[rank]]
    late = first.pop(1)

    assert detect([*in_turn(first), *second[0], *late, *second[1]], "straggler") == []
