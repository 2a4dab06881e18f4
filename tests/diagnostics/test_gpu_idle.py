from __future__ import annotations

import random

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run, detect
from tests.lengths import longer


def _trace(seconds, busy, *, per_second=10, seed=1):
    """A GPU's own trace: no steps, only seconds."""
    dice = random.Random(seed)
    return [
        {
            "event": "system",
            "global_step": second,
            "gpu_util_pct": 95.0 if dice.random() < busy(second) else 0.0,
        }
        for second in range(seconds)
        for _ in range(per_second)
    ]


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_gpu_that_mostly_waits_while_steps_advance_is_reported(seed):
    records = clean_run(seed, records=600)
    records = changed(records, "gpu_util", lambda step, util: util * 0.4 if step >= 3000 else util)

    (finding,) = detect(records, "low_gpu_util")

    assert abs(finding.start_step - 3000) <= 300
    assert finding.noticed_step > 3300
    assert finding.metric == "gpu_util"
    assert finding.is_open


def test_it_is_over_when_the_gpu_is_busy_again():
    records = clean_run(1, records=800)
    records = changed(records, "gpu_util", lambda step, util: util * 0.4 if 3000 <= step < 5000 else util)

    (finding,) = detect(records, "low_gpu_util")

    assert abs(finding.end_step - 5000) <= 300
    assert finding.resolved_step <= 5600


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_a_trace_without_steps_is_judged_behind_its_start_up(seed):
    records = _trace(400, lambda second: 0.0 if second < 35 or second > 390 else 0.43, seed=seed)

    (finding,) = detect(records, "low_gpu_util")

    assert 35 <= finding.start_step <= 55
    assert finding.noticed_step <= 120
    assert 35 <= finding.evidence["mean_pct"] <= 50


def test_start_up_and_shut_down_are_no_idling():
    assert detect(_trace(500, lambda second: 0.97 if 200 <= second < 300 else 0.0), "low_gpu_util") == []


def test_evaluations_on_the_processor_are_no_idling():
    records = clean_run(1, eval_every=20, eval_s=200.0)
    last = {"step": -1}

    def idle_without_a_new_step(step, util):
        is_same, last["step"] = step == last["step"], step
        return 0.0 if is_same else util

    assert detect(changed(records, "gpu_util", idle_without_a_new_step), "low_gpu_util") == []


def test_a_sample_that_is_also_on_step_records_counts_once():
    records = clean_run(1)
    with_both = [{**record, "gpu_util": 5.0} if record["event"] == "step" else record for record in records]

    assert detect(with_both, "low_gpu_util") == []


def test_step_records_are_enough_where_there_are_no_others():
    records = [{**record, "gpu_util": 30.0} for record in clean_run(1) if record["event"] == "step"]

    (finding,) = detect(records, "low_gpu_util")

    assert finding.noticed_step <= 800


def test_a_gpu_that_is_not_used_or_logged_as_a_fraction_is_not_judged():
    for util in (0.0, 0.93):
        assert detect(changed(clean_run(1), "gpu_util", lambda step, _: util), "low_gpu_util") == []  # noqa: B023


def _samples(utils, *, every_s=30.0, memory=None):
    memories = memory or [20_000.0] * len(utils)
    return [
        {
            "event": "system",
            "global_step": number,
            "t_s": every_s * number,
            "gpu_util_pct": util,
            "gpu_mem_mib": held,
        }
        for number, (util, held) in enumerate(zip(utils, memories, strict=True))
    ]


@pytest.mark.parametrize("every_s", [10.0, 30.0, 60.0])
def test_few_samples_are_enough_if_they_cover_minutes(every_s):
    utils = [95.0] * 15 + [20.0, 40.0] * 18

    (finding,) = detect(_samples(utils, every_s=every_s), "low_gpu_util")

    assert 8 <= finding.start_step <= 18
    assert detect(_samples(utils[:20], every_s=every_s), "low_gpu_util") == []


def test_a_gpu_that_does_nothing_counts_while_its_memory_is_held():
    utils = [95.0] * 20 + [0.0] * 40
    given_back = [20_000.0] * 20 + [3.0] * 40

    (finding,) = detect(_samples(utils), "low_gpu_util")

    assert finding.is_open
    assert detect(_samples(utils, memory=given_back), "low_gpu_util") == []
    assert detect(_samples(utils[:27]), "low_gpu_util") == [], "the end of a run may take a while"
