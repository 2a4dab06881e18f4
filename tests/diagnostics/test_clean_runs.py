"""Runs in which nothing is wrong: nothing about speed, machine, learning rate, gradients or ranks is said of them."""

from __future__ import annotations

import pytest

from tests.diagnostics.made_runs import (
    changed,
    clean_run,
    findings_of_clean_runs,
    paused,
    told,
    told_in_chunks,
)

KINDS = (
    *("vanishing_grad", "throughput_drop", "data_starvation", "low_gpu_util", "memory_growth"),
    *("stalled", "lr_problem", "loss_scale", "straggler"),
)


@pytest.mark.slow
def test_240_clean_runs_give_no_false_alarm():
    runs = 0
    alarms = []
    for _, name, findings in findings_of_clean_runs():
        runs += 1
        alarms += [(name, finding.message) for finding in findings if finding.kind in KINDS]

    assert runs == 240
    assert alarms == []


@pytest.mark.parametrize("size", [1, 7, 100])
def test_records_in_chunks_give_the_findings_that_they_give_at_once(size):
    records = clean_run(3, records=300, eval_every=25)
    records = changed(records, "samples_per_sec", lambda step, rate: rate * (0.5 if step > 1500 else 1.0))
    records = changed(records, "gpu_util", lambda step, util: util * (0.3 if step > 1500 else 1.0))
    records = paused(records, 2000, 900.0)

    at_once = told(records, *KINDS)

    assert {finding.kind for finding in at_once} == {"throughput_drop", "low_gpu_util", "stalled"}
    assert told_in_chunks(records, size, *KINDS) == at_once


def test_a_run_with_hardly_any_records_is_not_judged():
    for length in range(8):
        assert told(clean_run(records=10)[:length], *KINDS) == []
