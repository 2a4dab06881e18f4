from __future__ import annotations

import itertools
import math

import pytest

from toolkit.telemetry.diagnostics.examiner import Examiner, examine


def records_of(ranks, bad, *, every=lambda rank: 1, steps=60, metric="train_loss"):
    """Return the step records of each rank; those that are not due are folded into the next, except for NaN."""
    found = {}
    for rank in range(ranks):
        found[rank] = [{"event": "start", "session": 1, "world_size": ranks}] if rank == 0 else []
        folded = 0
        for step in range(1, steps + 1):
            is_bad = bad(rank, step)
            if step > 1 and step % every(rank) and not is_bad:
                folded += 1
                continue
            value = math.nan if is_bad else 1.0 / step
            record = {"event": "step", "session": 1, "global_step": step, metric: value, "time": float(step)}
            found[rank].append({**record, "rank": rank, **({"steps_folded": folded} if folded else {})})
            folded = 0
    return found


def by_step(found):
    return sorted(itertools.chain(*found.values()), key=lambda record: record.get("time", 0.0))


def rank_by_rank(found):
    return list(itertools.chain(*found.values()))


def others_late(found):
    """Rank 0 is ahead of the others, as in a live run that reads their files every two seconds."""
    return [*found[0], *itertools.chain(*(found[rank] for rank in found if rank))]


def rank_nans(records):
    return [finding for finding in examine(records) if finding.kind == "rank_nan"]


ORDERS = (by_step, rank_by_rank, others_late)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("metric", ["train_loss", "grad_norm"])
def test_the_rank_and_the_step_are_named(order, metric):
    (finding,) = rank_nans(order(records_of(4, lambda rank, step: rank == 3 and step >= 20, metric=metric)))

    assert finding.message == (
        f"{metric} is NaN or infinite on rank 3 since step 20; it is finite on 3 of the others."
    )
    assert finding.start_step == 20
    assert finding.is_open
    assert finding.severity == "critical"


@pytest.mark.parametrize("order", ORDERS)
def test_several_ranks_are_one_finding(order):
    (finding,) = rank_nans(order(records_of(8, lambda rank, step: rank in (2, 5, 7) and step >= 20)))

    assert "on ranks 2, 5 and 7 since step 20" in finding.message
    assert finding.evidence["finite_ranks"] == 5


@pytest.mark.parametrize("order", ORDERS)
def test_what_all_ranks_have_is_said_once(order):
    found = examine(order(records_of(4, lambda rank, step: step >= 20)))

    assert [finding.kind for finding in found] == ["nan"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("every", [1, 10])
def test_of_a_nan_that_spreads_the_first_rank_is_named(order, every):
    records = records_of(
        4, lambda rank, step: step >= 24 or (rank == 2 and step >= 23), every=lambda _: every
    )
    found = examine(order(records))

    assert [finding.kind for finding in found if finding.kind != "nan"] == ["rank_nan"]
    (finding,) = [finding for finding in found if finding.kind == "rank_nan"]
    assert finding.message == (
        "train_loss was NaN or infinite on rank 2 first, at step 23; all ranks had it at step 24."
    )


@pytest.mark.parametrize("order", ORDERS)
def test_rank_0_may_be_the_one(order):
    found = examine(order(records_of(4, lambda rank, step: rank == 0 and step >= 20)))

    assert {finding.kind for finding in found} == {"nan", "rank_nan"}
    assert "on rank 0 since step 20" in next(each.message for each in found if each.kind == "rank_nan")


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_that_log_at_other_steps_are_compared_by_the_steps_they_folded(order):
    records = records_of(3, lambda rank, step: rank == 1 and step == 23, every=lambda rank: (10, 1, 7)[rank])

    (finding,) = rank_nans(order(records))

    assert finding.start_step == 23
    assert finding.evidence["finite_ranks"] == 2
    assert not finding.is_open


def test_steps_that_a_script_did_not_log_say_nothing():
    def without_folds(record):
        return {name: value for name, value in record.items() if name != "steps_folded"}

    # Rank 0 may have had its first NaN at any step since its last record.
    records = records_of(
        2, lambda rank, step: step >= (23 if rank else 30), every=lambda rank: 1 if rank else 10
    )

    assert rank_nans([without_folds(record) for record in by_step(records)]) == []


def test_a_metric_that_only_one_rank_logs_is_watched():
    found = records_of(4, lambda rank, step: rank == 3 and step >= 20)
    for rank in (0, 1, 2):
        for record in found[rank]:
            record.pop("train_loss", None)

    (finding,) = rank_nans(by_step(found))

    assert finding.message == "train_loss is NaN or infinite on rank 3 since step 20; no other rank logs it."


def test_infinite_gradient_norms_of_a_loss_scale_are_no_fault_of_a_rank():
    records = by_step(records_of(2, lambda rank, step: rank == 1 and step == 20, metric="grad_norm"))
    infinite = [
        {**each, "grad_norm": math.inf} if "grad_norm" in each and math.isnan(each["grad_norm"]) else each
        for each in records
    ]

    assert rank_nans(infinite) == []


def test_the_next_session_starts_afresh():
    first = by_step(records_of(2, lambda rank, step: rank == 1 and step >= 50))
    second = [
        {**each, "session": 2, **({"global_step": each["global_step"] + 40} if "global_step" in each else {})}
        for each in by_step(records_of(2, lambda rank, step: False))
    ]
    late = [{**each, "session": 1} for each in first[-4:]]
    (finding,) = rank_nans([*first, second[0], *late, *second[1:]])

    assert finding.session == 1
    assert not finding.is_open


def test_a_run_of_one_process_keeps_nothing():
    examiner = Examiner()
    examiner.take(records_of(1, lambda rank, step: step == 20)[0])

    assert [finding.kind for finding in examiner.findings()] == ["nan"]
