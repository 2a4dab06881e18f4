"""A slowdown that was planted is found with its size; noise of whatever kind is not taken for one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.runs.columns.speed import compare, groups_of, jobs_of

SEEDS = range(30)


def step_times(seed, count=400, *, seconds=0.5, noise=0.06, memory=0.0):
    """Return step times around `seconds`; `memory` is how much of its neighbour each one keeps."""
    fresh = np.random.default_rng(seed).normal(size=count) * math.sqrt(1 - memory**2)
    kept = np.empty(count)
    last = fresh[0] / math.sqrt(1 - memory**2)
    for place, value in enumerate(fresh):
        last = kept[place] = memory * last + value
    return seconds * np.exp(noise * kept)


def jobs(times, *, run="r", tag=None, began=0.0, **columns):
    """Return the jobs of a run that has a session for each of `times`."""
    sessions = [
        Session(session=number, started=began + number, pid=1, host=f"host-{number}", perf_tag=tag)
        for number in range(1, len(times) + 1)
    ]
    table = {
        "session": np.concatenate([np.full(len(part), float(n)) for n, part in enumerate(times, 1)]),
        "global_step": np.concatenate([np.arange(len(part), dtype=float) for part in times]),
        "sec_per_step": np.concatenate(times),
        **columns,
    }
    return jobs_of(run, run, sessions, (), table)


def group(name, times, **columns):
    (found,) = groups_of(jobs(times, run=name, tag=name, **columns))
    return found


def verdict(new, old):
    return compare(group("new", new), group("old", old))


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_a_slowdown_of_a_tenth_is_found_and_lies_within_the_interval(memory):
    found = [
        verdict(
            [step_times(seed, seconds=0.55, memory=memory)],
            [step_times(1000 + seed, seconds=0.5, memory=memory)],
        )
        for seed in SEEDS
    ]

    assert sum(one.outcome == "slower" for one in found) >= 0.9 * len(found)
    assert all(one.outcome != "faster" for one in found)
    assert sum(one.low <= 1.1 <= one.high for one in found) >= 0.9 * len(found)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.97])
def test_equal_jobs_are_found_different_in_fewer_than_one_of_ten_cases(memory):
    found = [
        verdict([step_times(seed, memory=memory)], [step_times(1000 + seed, memory=memory)]) for seed in SEEDS
    ]

    assert sum(one.outcome == "same" for one in found) >= 0.9 * len(found)


def test_jobs_of_one_tag_that_differ_among_themselves_make_no_difference_between_tags():
    outcomes = []
    for seed in SEEDS:
        levels = 0.5 * np.exp(0.05 * np.random.default_rng(seed).normal(size=5))
        times = [step_times(100 * seed + n, 60, seconds=level) for n, level in enumerate(levels)]
        outcomes.append(verdict(times[:3], times[3:]).outcome)

    assert outcomes.count("same") >= 0.9 * len(outcomes)


def test_a_slowdown_larger_than_what_jobs_of_one_tag_differ_by_is_found():
    found = verdict(
        [step_times(n, seconds=0.56 + 0.002 * n) for n in range(3)],
        [step_times(10 + n, seconds=0.5 + 0.002 * n) for n in range(2)],
    )

    assert found.outcome == "slower"
    assert found.low < 1.12 < found.high
    assert found.sentence.endswith("%, 3 jobs vs 2).")
    assert found.spread_known


def test_a_few_very_slow_steps_change_nothing():
    slow = step_times(3)
    slow[::50] *= 40

    found = verdict([slow], [step_times(4)])

    assert found.outcome == "same"


def test_the_warm_up_is_left_out():
    cold = step_times(5)
    cold[:20] *= 20

    (job,) = jobs([cold])

    assert job.records == 380
    assert job.median == pytest.approx(0.5, rel=0.02)
    assert job.p90 < 1.0
    assert job.steps == 400


def test_of_a_short_job_ten_records_are_left_out_and_too_few_are_not_judged():
    (short,) = jobs([step_times(6, 29)])
    (enough,) = jobs([step_times(6, 30)])
    (only_warm_up,) = jobs([step_times(6, 4)])

    assert (short.records, enough.records, only_warm_up.records) == (19, 20, 4)
    assert short.noise is None
    assert enough.noise is not None
    assert only_warm_up.noise is None
    assert verdict([step_times(6, 29)], [step_times(7)]) is None


def test_with_one_batch_size_or_an_unknown_one_it_is_judged_by_the_step():
    times = step_times(1), step_times(2)

    alike = compare(*(group("g", [one], samples_per_sec=4 / one) for one in times))
    unknown = compare(group("a", [times[0]], samples_per_sec=8 / times[0]), group("b", [times[1]]))

    assert (alike.per, unknown.per) == ("step", "step")


def test_jobs_are_grouped_by_their_tag_across_runs_with_the_oldest_tag_first():
    found = groups_of(
        [
            *jobs([step_times(1)], run="late", tag="b", began=200.0),
            *jobs([step_times(2)], run="early", tag="a", began=100.0),
            *jobs([step_times(3)], run="again", tag="a", began=300.0),
            *jobs([step_times(4), step_times(5)], run="plain", began=50.0),
            # Called like a tag.
            *jobs([step_times(6)], run="a", began=400.0),
        ]
    )

    assert [(one.name, one.tagged, len(one.jobs)) for one in found] == [
        ("plain", False, 2),
        ("a", True, 2),
        ("b", True, 1),
        ("a", False, 1),
    ]


def test_the_start_record_tells_device_and_tag_where_the_manifest_does_not():
    starts = [
        {
            "event": "start",
            "session": 1,
            "time": 5.0,
            "perf_tag": ["a", "b"],
            "accelerators": [{"name": "H100"}] * 2,
        },
        {"event": "environment", "session": 2, "cpu": {"model": "A chip"}},
        {"event": "environment", "session": "odd", "time": 6.0, "cpu": "odd", "accelerators": [{}, "odd"]},
    ]
    times = [step_times(1), step_times(2)]
    table = {
        "session": np.repeat([1.0, 2.0], 400),
        "global_step": np.arange(800.0),
        "sec_per_step": np.concatenate(times),
    }

    first, second = jobs_of("r", "r", (), starts, table)

    assert (first.device, first.perf_tag, first.started) == ("2 x H100", "a,b", 5.0)
    assert (second.device, second.perf_tag) == ("A chip", None)
