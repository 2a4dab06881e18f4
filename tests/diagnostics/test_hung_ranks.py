"""The rank that the others wait for is named from what all ranks say about where they are."""

from __future__ import annotations

import pytest

from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import ranks_in

READING = {"line": "data.py:12 in read", "collective": "", "is_sure": False, "tensors": []}
REDUCING = {
    "line": "train.py:88 in train",
    "collective": "all_reduce",
    "is_sure": True,
    "tensors": ["float32[4, 4]"],
}
BACKWARD = {"line": "train.py:80 in train", "collective": "backward", "is_sure": False, "tensors": []}
SAVING = {"line": "save.py:5 in save", "collective": "barrier", "is_sure": True, "tensors": []}


def hang(rank, where, *, begun=40, seconds=70.0, is_idle=True, state="open"):
    return {
        "event": "finding",
        "session": 1,
        "rank": rank,
        "id": f"1-hang-global_step-20-rank-{rank}",
        "kind": "hang",
        "severity": "info",
        "state": state,
        "metric": "global_step",
        "start_step": 20,
        "resolved_step": None if state == "open" else 21,
        "message": "No step.",
        "evidence": {"seconds": seconds},
        **({"where": {**where, "groups": {"0": begun}, "is_idle": is_idle}} if where else {}),
    }


def a_run_of(world):
    """Return an examiner that has read a step of each rank."""
    examiner = Examiner()
    examiner.take([{"event": "start", "session": 1, "world_size": world}])
    examiner.take(
        {"event": "step", "session": 1, "rank": rank, "global_step": 20, "train_loss": 1.0}
        for rank in range(world)
    )
    return examiner


def found(reports, world=None):
    examiner = a_run_of(world or len(reports))
    examiner.take(reports)
    return [finding for finding in examiner.findings() if finding.kind == "rank_hung"]


def of_one(rank, where, others, *, world=4, **more):
    return [
        hang(each, where if each == rank else others, **(more if each == rank else {}))
        for each in range(world)
    ]


def test_the_rank_that_is_not_in_the_collective_of_the_others_is_named_with_its_line():
    (finding,) = found(of_one(2, READING, REDUCING))

    assert (finding.severity, finding.state, finding.start_step) == ("critical", "open", 20)
    assert finding.message == (
        "No rank advances since step 20, because of rank 2: it is at data.py:12 in read, while the others wait in "
        "all_reduce of float32[4, 4] (train.py:88 in train)."
    )


def in_groups(*groups):
    """Return reports of ranks that wait in a backward pass and have begun so many collectives of each group."""
    reports = [hang(rank, BACKWARD) for rank in range(len(groups))]
    for report, begun in zip(reports, groups, strict=True):
        report["where"]["groups"] = begun
    return reports


NAMED = {
    **{
        f"{what}, rank {rank}": (of_one(rank, where, others, **more), rank)
        for rank in (0, 3)
        for what, where, others, more in (
            ("it reads while the others are in a backward pass", READING, BACKWARD, {}),
            ("it is in a backward pass", BACKWARD, REDUCING, {}),
            ("it has begun one collective less", BACKWARD, BACKWARD, {"begun": 39}),
            ("all read, and it has begun one less", READING, READING, {"begun": 39}),
            ("another collective", SAVING, REDUCING, {}),
            ("other tensors", {**REDUCING, "tensors": ["float32[4, 5]"]}, REDUCING, {}),
            ("it has begun one collective more", REDUCING, REDUCING, {"begun": 41}),
        )
    },
    "of two ranks the one that does not wait": (of_one(1, READING, REDUCING, world=2), 1),
    # Ranks 0 and 1 share a group in which rank 1 is late; so rank 0 has not come to what all exchange either.
    "not the one that waits for another group": (
        in_groups({"all": 8, "a": 5}, {"all": 8, "a": 4}, {"all": 9, "b": 4}, {"all": 9, "b": 4}),
        1,
    ),
    "one that works, after five minutes in which none advances": (
        of_one(0, READING, REDUCING, is_idle=False, seconds=301.0),
        0,
    ),
}


@pytest.mark.parametrize(("reports", "rank"), NAMED.values(), ids=NAMED)
def test_the_odd_one_out_is_named(reports, rank):
    (finding,) = found(reports)

    assert ranks_in(finding.evidence) == [rank]


def test_ranks_that_all_wait_in_the_same_collective_are_said_to_without_a_name():
    (finding,) = found([hang(rank, REDUCING) for rank in range(4)])

    assert "ranks" not in finding.evidence
    assert "each waits for the others: all_reduce" in finding.message


def test_ranks_that_wait_in_two_places_are_named_by_no_number_if_no_place_has_most_of_them():
    (finding,) = found([hang(0, SAVING), hang(1, REDUCING), hang(2, SAVING), hang(3, REDUCING)])

    assert "ranks" not in finding.evidence
    assert (
        "barrier (save.py:5 in save) or all_reduce of float32[4, 4] (train.py:88 in train)" in finding.message
    )


@pytest.mark.parametrize(
    "reports",
    [
        [hang(rank, READING) for rank in range(4)],
        [hang(rank, BACKWARD) for rank in range(4)],
        of_one(0, READING, REDUCING, is_idle=False),
        of_one(2, READING, REDUCING)[:3],
        [hang(0, REDUCING)],
        [*of_one(2, READING, REDUCING)[:3], hang(3, None)],
    ],
    ids=[
        "all read",
        "all in backward",
        "it works",
        "one has not reported",
        "alone",
        "without a place",
    ],
)
def test_what_cannot_be_said_is_not_said(reports):
    assert found(reports, world=4) == []


def ended(rank, status="finished"):
    return {"event": "end", "session": 1, "rank": rank, "global_step": 20, "status": status}


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_has_ended_is_what_the_others_wait_for(rank):
    (finding,) = found([ended(rank), *(hang(each, REDUCING) for each in range(4) if each != rank)], world=4)

    assert (
        f"because of rank {rank}: it is at the end of its run, while the others wait in all_"
        in finding.message
    )


def test_ranks_that_are_stopped_one_after_the_other_are_not_what_the_others_waited_for():
    waiting = [hang(rank, BACKWARD) for rank in range(4)]

    assert found([*waiting, *(ended(rank, "stopped") for rank in range(3))], world=4) == []
    assert found([*waiting, *(ended(rank) for rank in range(4))], world=4) == []


def test_it_is_over_when_a_rank_goes_on():
    examiner = a_run_of(4)
    (opened,) = [each for each in examiner.take(of_one(2, READING, REDUCING)) if each.kind == "rank_hung"]
    (over,) = [each for each in examiner.take([hang(2, None, state="resolved")]) if each.kind == "rank_hung"]

    assert (over.id, over.state, over.resolved_step) == (opened.id, "resolved", 21)
    assert over.message.endswith("It went on at step 21.")


def test_whatever_the_records_hold_nothing_breaks():
    odd = [
        {**hang(1, REDUCING), "where": where} for where in (3, [], {"line": 4}, {"line": "x", "groups": [1]})
    ]

    assert (
        found([*odd, {**hang(1, REDUCING), "start_step": "x"}, {**hang(2, REDUCING), "evidence": 1}], 4) == []
    )
