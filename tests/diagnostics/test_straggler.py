"""A rank that is slower than the others: by itself, or in a part of the step for which the others wait."""

from __future__ import annotations

import itertools
import random

from tests.diagnostics.synthetic_runs import clean_run, wait_for_each_other
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of
from tests.lengths import longer
from toolkit.telemetry.diagnostics.examiner import Examiner, examine


def of_ranks(seed, count, slow, *, noise=0.05):
    """A run's records with those of its other ranks between them; `slow(rank, step)` is how many times as slow."""
    dice, records = random.Random(seed), []
    for record in clean_run(seed, with_rate=False):
        if record["event"] != "step":
            records.append(record)
            continue
        for rank in range(count):
            took = 0.4 * slow(rank, record["global_step"]) * dice.lognormvariate(0.0, noise)
            mine = {**record, "sec_per_step": took}
            records.append({**mine, "rank": rank} if rank else mine)
    return records


# ------------------------------------------------------------ ranks that wait for each other

OWN = {"optimizer_update": 0.02, "data_loading": 0.02, "rest": 0.01, "forward": 0.1, "backward": 0.2}
"""Seconds of a step without any wait, in the order in which they come."""
REST_LAST = ("optimizer_update", "data_loading", "forward", "backward", "rest")
"""Where gradients are exchanged behind the backward pass, by a script itself."""


def no_more(rank, step, part):
    return 0.0


def synchronous(
    count,
    extra=no_more,
    *,
    seed=0,
    steps=800,
    log_every=10,
    noise=0.05,
    wait_in="backward",
    timed=tuple(OWN),
    order=tuple(OWN),
):
    """Return the step records of ranks that wait for each other in `wait_in`, by rank; rank 0's begin with the start.

    `extra` is how many seconds more a part takes. Only parts that are `timed` are in the records.
    """
    dice = random.Random(seed)
    records = {rank: [] for rank in range(count)}
    records[0].append({"event": "start", "session": 1, "world_size": count})
    sums = [dict.fromkeys(OWN, 0.0) for _ in range(count)]
    clock = began = 0.0
    for step in range(1, steps + 1):
        takes = [
            {part: OWN[part] * dice.lognormvariate(0.0, noise) + extra(rank, step, part) for part in order}
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


def waited_for(*given, **about):
    return lambda: in_turn(synchronous(*given, **about))


def slow_in(part, who, seconds=0.15, *, first=1, last=10**9):
    return lambda rank, step, of: seconds if rank == who and of == part and first <= step < last else 0.0


def slow_passes(who, share):
    """The forward and the backward pass of one rank take longer; the backward pass hides most of it."""
    own = {"forward": share * OWN["forward"], "backward": share * OWN["backward"]}
    return lambda rank, step, part: own.get(part, 0.0) if rank == who and step >= 300 else 0.0


def by_the_device():
    records = synchronous(4)
    for rank, record in [(rank, record) for rank, mine in records.items() for record in mine]:
        if record["event"] == "step":
            record["device_time/forward"] = 10 * (0.3 if rank == 2 else 0.1)
    return in_turn(records)


def with_saves(seconds):
    """A checkpoint each 50 steps: `seconds(rank, step)` is what it takes."""
    records = synchronous(4)
    for rank, mine in records.items():
        for record in mine:
            step = record.get("global_step", 1)
            if step % 50 == 0 and (took := seconds(rank, step)):
                record["time/checkpoint_save_sync"] = took
    return in_turn(records)


def without_rank_3():
    records = synchronous(4, slow_in("data_loading", 2), steps=1200)
    del records[3]
    return in_turn(records)


def late_of_another_session():
    first, second = synchronous(2, slow_in("data_loading", 1)), synchronous(2)
    for rank in second:
        second[rank] = [{**record, "session": 2} for record in second[rank]]
    late = first.pop(1)
    return [*in_turn(first), *second[0], *late, *second[1]]


PARTS = {
    "data_loading": "in loading its data since step",
    "forward": "in compute since step",
    "optimizer_update": "in compute since step",
    "rest": "outside of the timed parts of a step",
}
SAID = {
    **{
        f"rank {who} of {count} becomes slower": (
            Seeds(
                lambda seed, count=count, who=who: of_ranks(
                    seed, count, lambda rank, step: 1.5 if rank == who and step >= 2000 else 1.0
                ),
                2,
                5,
            ),
            {
                "start_step": Between(1900, 2100),
                "noticed_step": Between(2200, 2400),
                "rank": who,
                "message": Saying(f"Rank {who} takes 1."),
            },
        )
        for count, who in itertools.product((2, 4, 16), (0, 1))
    },
    "it keeps up again": (
        lambda: of_ranks(1, 4, lambda rank, step: 1.6 if rank == 2 and 1000 <= step < 3000 else 1.0),
        {"end_step": Between(2900, 3100), "resolved_step": Between(2900, 3300)},
    ),
    **{
        f"the others wait for rank {who} of {count}, slow in {part}": (
            waited_for(count, slow_in(part, who, first=200)),
            {
                "rank": who,
                "message": Saying(f"Rank {who} is slower than the others", PARTS[part]),
                "metric": "sec_per_step" if part == "rest" else f"time/{part}",
                "start_step": Between(100, 300),
                "noticed_step": Between(200, 600),
                "seconds": Between(0.9 * (OWN[part] + 0.15), 1.1 * (OWN[part] + 0.15)),
                "others": Between(0.7 * OWN[part], 1.3 * OWN[part]),
                "ratio": Between(0.9 * 0.5 / 0.35, 1.1 * 0.5 / 0.35),
            },
        )
        for part in PARTS
        for count, who in longer([(2, 1), (4, 0)], [(2, 0), (2, 1), (4, 0), (16, 1)])
    },
    **{
        f"{count - 1} wait in the forward pass for slow data": (
            waited_for(count, slow_in("data_loading", 1), wait_in="forward"),
            {"rank": 1, "metric": "time/data_loading"},
        )
        for count in (2, 4)
    },
    **{
        f"they wait outside of the timed parts for a slow {part}": (
            waited_for(3, slow_in(part, 1), wait_in="rest", order=REST_LAST),
            {"rank": 1, "metric": f"time/{part}"},
        )
        for part in ("data_loading", "forward", "backward")
    },
    "data and iteration are parts enough": (
        waited_for(4, slow_in("data_loading", 3), timed=("data_loading",)),
        {"rank": 3, "metric": "time/data_loading"},
    ),
    "the device's clock counts where it was asked": (
        by_the_device,
        {"rank": 2, "message": Saying("in compute")},
    ),
    **{
        f"the passes of rank {who} of {count} are slower by {share}": (
            waited_for(count, slow_passes(who, share), steps=620, log_every=1, noise=0.04),
            {"rank": who, "metric": "time/forward", "noticed_step": Between(301, 599)},
        )
        for count in longer([4], [4, 8, 32])
        for share, who in ((0.1, 0), (0.3, 2), (1.0, 3))
    },
    "its checkpoints take longer": (
        lambda: with_saves(lambda rank, step: 10.0 if rank == 2 and 300 <= step < 600 else 1.0),
        {
            "rank": 2,
            "message": Saying("in saving its checkpoints since step 300: 10 s each, 1 s on the others"),
            "resolved_step": Between(600, 620),
        },
    ),
    "the others stop waiting": (
        waited_for(4, slow_in("forward", 2, first=100, last=900), steps=2000),
        {"end_step": Between(800, 1000), "resolved_step": Between(800, 1200)},
    ),
    "another rank never writes": (without_rank_3, {"rank": 2}),
}
SILENT = {
    **{
        f"alike in noise of {noise}": Seeds(
            lambda seed, noise=noise: of_ranks(seed, 8, lambda rank, step: 1.0, noise=noise), 2, 10
        )
        for noise in (0.02, 0.1, 0.3)
    },
    "slow together": lambda: of_ranks(1, 4, lambda rank, step: 3.0 if step > 2000 else 1.0),
    **{
        f"they wait for each other by turns in {part}, in noise of {noise}": waited_for(
            4, seed=1, noise=noise, wait_in=part, steps=2000
        )
        for part, noise in itertools.product(("backward", "forward", "rest"), (0.05, 0.3))
    },
    "a rank that saves now and then": waited_for(
        4, lambda rank, step, part: 5.0 if (rank, part) == (0, "rest") and step % 50 == 0 else 0.0
    ),
    "rank 0 saves alone": lambda: with_saves(lambda rank, step: 5.0 if rank == 0 else 0.0),
    "rank 0 has more to save": lambda: with_saves(lambda rank, step: 5.0 if rank == 0 else 1.0),
    "it costs nothing": lambda: with_saves(lambda rank, step: 0.02 if rank == 1 else 0.01),
    "late records of an earlier session": late_of_another_session,
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("straggler", SAID, SILENT)


def test_the_ranks_of_these_runs_wait_for_each_other():
    for part in PARTS:
        steps = [rank[-1]["sec_per_step"] for rank in synchronous(4, slow_in(part, 0)).values()]

        assert max(steps) < 1.05 * min(steps), part


def test_the_order_in_which_the_ranks_are_read_changes_nothing():
    records = synchronous(4, slow_in("data_loading", 2, first=300, last=1000), steps=1500)
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
