"""NaN on some ranks and not on others: which, since when, and what is no fault of a rank."""

from __future__ import annotations

import itertools
import math

from tests.diagnostics.what_is_said import Saying, contract_of


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


def without_the_metric(found, *ranks):
    """Return the records of all ranks, of which these do not log the loss."""
    for record in [record for rank in ranks for record in found[rank]]:
        record.pop("train_loss", None)
    return found


def two_sessions():
    first = by_step(records_of(2, lambda rank, step: rank == 1 and step >= 50))
    second = [
        {**each, "session": 2, **({"global_step": each["global_step"] + 40} if "global_step" in each else {})}
        for each in by_step(records_of(2, lambda rank, step: False))
    ]
    late = [{**each, "session": 1} for each in first[-4:]]
    return [*first, second[0], *late, *second[1:]]


def without_folds():
    # Rank 0 may have had its first NaN at any step since its last record.
    records = records_of(
        2, lambda rank, step: step >= (23 if rank else 30), every=lambda rank: 1 if rank else 10
    )
    return [
        {name: value for name, value in record.items() if name != "steps_folded"}
        for record in by_step(records)
    ]


def infinite_norms():
    records = by_step(records_of(2, lambda rank, step: rank == 1 and step == 20, metric="grad_norm"))
    return [
        {**each, "grad_norm": math.inf} if "grad_norm" in each and math.isnan(each["grad_norm"]) else each
        for each in records
    ]


def spreading(every):
    return records_of(4, lambda rank, step: step >= 24 or (rank == 2 and step >= 23), every=lambda _: every)


IN_ANY_ORDER = {
    **{
        f"one rank, of {metric}": (
            records_of(4, lambda rank, step: rank == 3 and step >= 20, metric=metric),
            {
                "message": f"{metric} is NaN or infinite on rank 3 since step 20; it is finite on 3 of the others.",
                "start_step": 20,
                "state": "open",
                "severity": "critical",
            },
        )
        for metric in ("train_loss", "grad_norm")
    },
    "several ranks": (
        records_of(8, lambda rank, step: rank in (2, 5, 7) and step >= 20),
        {"message": Saying("on ranks 2, 5 and 7 since step 20"), "finite_ranks": 5},
    ),
    **{
        f"it spreads, logged each {every}": (
            spreading(every),
            {
                "message": "train_loss was NaN or infinite on rank 2 first, at step 23; "
                "all ranks had it at step 24."
            },
        )
        for every in (1, 10)
    },
    "rank 0": (
        records_of(4, lambda rank, step: rank == 0 and step >= 20),
        {"message": Saying("on rank 0 since step 20")},
    ),
    "ranks log at other steps": (
        records_of(3, lambda rank, step: rank == 1 and step == 23, every=lambda rank: (10, 1, 7)[rank]),
        {"start_step": 23, "finite_ranks": 2, "state": "resolved"},
    ),
}
SAID = {
    **{
        f"{name}, {order.__name__}": (order(records), facts)
        for name, (records, facts) in IN_ANY_ORDER.items()
        for order in (by_step, rank_by_rank, others_late)
    },
    "no other rank logs the metric": (
        by_step(without_the_metric(records_of(4, lambda rank, step: rank == 3 and step >= 20), 0, 1, 2)),
        {"message": "train_loss is NaN or infinite on rank 3 since step 20; no other rank logs it."},
    ),
    "the next session": (two_sessions(), {"session": 1, "state": "resolved"}),
}
SILENT = {
    **{
        f"all ranks, {order.__name__}": order(records_of(4, lambda rank, step: step >= 20))
        for order in (by_step, rank_by_rank, others_late)
    },
    "steps that a script did not log": without_folds(),
    "infinite gradient norms of a loss scale": infinite_norms(),
    "one process": records_of(1, lambda rank, step: step == 20)[0],
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("rank_nan", SAID, SILENT)
