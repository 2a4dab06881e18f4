from __future__ import annotations

import random

import pytest

from tests.diagnostics.made_runs import clean_run, told


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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_becomes_slower_is_told(seed, count, who):
    records = _ranks(seed, count, lambda rank, step: 1.5 if rank == who and step >= 2000 else 1.0)

    (finding,) = told(records, "straggler")

    assert abs(finding.start_step - 2000) <= 100
    assert 2200 <= finding.noticed_step <= 2400
    assert finding.evidence["rank"] == who
    assert finding.message.startswith(f"Rank {who} takes 1.")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_ranks_that_are_alike_are_none(seed, noise):
    assert told(_ranks(seed, 8, lambda rank, step: 1.0, noise=noise), "straggler") == []


def test_ranks_that_are_slow_together_are_none():
    assert told(_ranks(1, 4, lambda rank, step: 3.0 if step > 2000 else 1.0), "straggler") == []


def test_it_is_over_when_the_rank_keeps_up():
    (finding,) = told(
        _ranks(1, 4, lambda rank, step: 1.6 if rank == 2 and 1000 <= step < 3000 else 1.0), "straggler"
    )

    assert abs(finding.end_step - 3000) <= 100
    assert finding.resolved_step <= 3300
