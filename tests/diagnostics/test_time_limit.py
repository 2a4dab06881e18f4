"""A run that will not finish before the limit of its job."""

from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import clean_run, detect, detect_one_by_one, paused
from tests.lengths import longer
from toolkit.telemetry.diagnostics.examiner import examine

KIND = "time_limit"


def limited(records, seconds, **fields):
    """Return `records` of a job that must end so many seconds after its start."""
    return [{**records[0], "job_end_time": records[0]["time"] + seconds, **fields}, *records[1:]]


def seconds_of(records):
    return records[-1]["elapsed"]


def test_it_says_by_how_much_the_run_is_late_and_what_to_do():
    run = clean_run(1, records=1000, eval_every=50, checkpoint_every=100)
    cut = limited(run[: len(run) // 2], 0.7 * seconds_of(run))

    (finding,) = detect(cut, KIND)

    assert (finding.state, finding.severity, finding.metric) == ("open", "warning", "global_step")
    assert finding.evidence["late_s"] == pytest.approx(0.3 * seconds_of(run), rel=0.2)
    assert finding.message.startswith("At this pace the run ends 22 m ")
    assert finding.message.endswith(" after the limit of its job, 2023-11-14 23:12 UTC.")
    assert finding.advice[0] == "Save by 2023-11-14 23:12 UTC, and resume in another job."


def test_a_run_that_fits_is_not_judged_late_whatever_its_noise_and_pauses():
    for seed in range(longer(4, 40)):
        for about in (
            {"speed_noise": 0.5, "log_every": 1},
            {"eval_every": 100, "eval_s": 300.0},
            {"log_every": 50, "sec_per_step": 3.0, "eval_every": 8, "checkpoint_every": 25},
            {"records": 60},
        ):
            run = clean_run(seed, **about)
            # With a tenth to spare.
            assert detect(limited(run, 1.1 * seconds_of(run)), KIND) == [], (seed, about)


def test_neither_a_slow_start_nor_one_long_pause_is_the_pace():
    run = clean_run(2, records=1000)
    slow = paused(paused(run, 10, 900.0), 3000, 2000.0)

    assert detect(limited(slow, 1.05 * seconds_of(slow)), KIND) == []


def test_a_run_that_gets_faster_fits_again():
    run = clean_run(3, records=1000)
    half = seconds_of(run) / 2
    # The first half takes three times as long.
    slow = [
        {**record, "elapsed": elapsed, "time": record["time"] - record["elapsed"] + elapsed}
        for record in run
        for elapsed in [record["elapsed"] + 2 * min(record["elapsed"], half)]
    ]

    (finding,) = detect(limited(slow, 1.1 * seconds_of(slow)), KIND)

    assert finding.state == "resolved"
    assert 0 < finding.noticed_step < 5000 < finding.resolved_step < run[-1]["global_step"]


def test_a_run_that_finishes_after_all_or_goes_on_beyond_the_limit_was_given_more_time():
    run = clean_run(4, records=1000)
    (finding,) = detect(limited(run, seconds_of(run) - 500.0), KIND)
    (beyond,) = detect(limited(run[:-1], 0.5 * seconds_of(run)), KIND)

    assert (finding.state, finding.resolved_step) == ("resolved", run[-1]["global_step"])
    assert beyond.state == "resolved"
    assert beyond.resolved_step < run[-1]["global_step"]


def test_the_limit_of_an_earlier_session_says_nothing_about_the_next():
    run = clean_run(5, records=1200, sessions=3)
    (finding,) = detect(limited(run, 1000.0), KIND)

    assert finding.state == "resolved"
    assert finding.session == 1


def test_a_job_that_was_requeued_is_expected_to_be_cut():
    run = clean_run(6, records=600)

    assert {f.severity for f in detect(limited(run, 0.5 * seconds_of(run), job_restarts=1), KIND)} == {"info"}


def test_a_run_without_planned_steps_is_not_judged():
    run = limited(clean_run(8), 100.0)
    del run[0]["max_steps"]

    assert detect(run, KIND) == []


def test_a_session_that_gets_a_limit_late_is_judged_as_one_that_always_had_it():
    run = clean_run(9, records=900, sessions=3)
    starts = [place for place, record in enumerate(run) if record["event"] == "start"]
    late = dict(run[starts[1]], job_end_time=run[starts[1]]["time"] + 300.0)
    run[starts[1]] = late
    examiner, _ = detect_one_by_one(run)

    assert [f.session for f in examiner.findings() if f.kind == KIND] == [2]
    assert examine(run) == examiner.findings()
