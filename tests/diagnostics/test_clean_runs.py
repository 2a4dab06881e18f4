"""Records that come in pieces, about speed, machine, learning rate, gradients and ranks: the same is said of them."""

from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import (
    SILENT_IN_ANY_NOISE,
    changed,
    clean_run,
    detect,
    detect_in_chunks,
    paused,
)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_records_in_chunks_give_the_findings_that_they_give_at_once(size):
    records = clean_run(3, records=300, eval_every=25)
    records = changed(records, "samples_per_sec", lambda step, rate: rate * (0.5 if step > 1500 else 1.0))
    records = changed(records, "gpu_util", lambda step, util: util * (0.3 if step > 1500 else 1.0))
    records = paused(records, 2000, 900.0)

    at_once = detect(records, *SILENT_IN_ANY_NOISE)

    assert {finding.kind for finding in at_once} == {"throughput_drop", "low_gpu_util", "stalled"}
    assert detect_in_chunks(records, size, *SILENT_IN_ANY_NOISE) == at_once


def test_a_run_with_hardly_any_records_is_not_judged():
    for length in range(8):
        assert detect(clean_run(records=10)[:length], *SILENT_IN_ANY_NOISE) == []
