from __future__ import annotations

import random

import pytest

from tests.diagnostics.synthetic_runs import added, clean_run, detect
from tests.lengths import longer


def _waiting(seed, share, **about):
    dice = random.Random(seed)
    return added(
        clean_run(seed, **about),
        "data_time_s",
        lambda step: 0.4 * share(step) * dice.lognormvariate(0.0, 0.2),
    )


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_waiting_for_data_from_the_start_is_reported_after_twenty_records(seed):
    (finding,) = detect(_waiting(seed, lambda step: 0.6), "data_starvation")

    assert finding.start_step <= 20
    assert finding.noticed_step == 200
    assert finding.severity == "warning"
    assert abs(finding.evidence["share_pct"] - 60) < 10


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_waiting_that_begins_in_the_middle_is_reported_from_there_and_ends(seed):
    (finding,) = detect(_waiting(seed, lambda step: 0.6 if 2000 <= step < 3000 else 0.05), "data_starvation")

    assert abs(finding.start_step - 2000) <= 20
    assert 2200 <= finding.noticed_step <= 2300
    assert abs(finding.end_step - 3000) <= 20
    assert finding.resolved_step <= 3300


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_short_wait_and_slow_first_batches_of_epochs_are_nothing(seed):
    assert detect(_waiting(seed, lambda step: 0.95 if step % 200 < 40 else 0.15), "data_starvation") == []


def test_a_loop_that_counts_waiting_apart_from_the_step_is_read_rightly():
    assert detect(_waiting(1, lambda step: 1.2), "data_starvation")[0].evidence["share_pct"] < 65


@pytest.mark.parametrize(("share", "found"), [(0.6, 1), (0.1, 0)])
def test_the_ledgers_sum_over_several_steps_is_taken_for_one_of_them(share, found):
    run = added(clean_run(1), "steps_folded", lambda step: 9)
    run = added(run, "ledger/data_wait", lambda step: 10 * 0.4 * share)

    findings = detect(run, "data_starvation")
    assert len(findings) == found
    assert all(abs(finding.evidence["share_pct"] - 60) < 10 for finding in findings)
