"""A run that will not finish before the limit of its job."""

from __future__ import annotations

from tests.diagnostics.synthetic_runs import clean_run, detect_one_by_one, paused
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of
from toolkit.telemetry.diagnostics.examiner import examine

KIND = "time_limit"


def limited(records, share, seconds=0.0, **fields):
    """Return `records` of a job that must end after that share of its seconds, and so many more."""
    limit = records[0]["time"] + share * seconds_of(records) + seconds
    return [{**records[0], "job_end_time": limit, **fields}, *records[1:]]


def seconds_of(records):
    return records[-1]["elapsed"]


def half_of(records, share):
    """Return the first half of a run that is limited to a share of its seconds."""
    return limited(records, share)[: len(records) // 2]


def with_a_slow_first_half(records):
    """Return `records` of which the first half takes three times as long."""
    half = seconds_of(records) / 2
    late = [2 * min(record["elapsed"], half) for record in records]
    return [
        {**record, "elapsed": record["elapsed"] + by, "time": record["time"] + by}
        for record, by in zip(records, late, strict=True)
    ]


def without_a_plan(records):
    return [{name: value for name, value in record.items() if name != "max_steps"} for record in records]


LONG = clean_run(1, records=1000, eval_every=50, checkpoint_every=100)
SLOW_AT_TIMES = paused(paused(clean_run(2, records=1000), 10, 900.0), 3000, 2000.0)
SAID = {
    "it is late": (
        half_of(LONG, 0.7),
        {
            "state": "open",
            "severity": "warning",
            "metric": "global_step",
            "late_s": Between(0.24 * seconds_of(LONG), 0.36 * seconds_of(LONG)),
            "message": Saying(
                "At this pace the run ends 22 m ", " after the limit of its job, 2023-11-14 23:12 UTC."
            ),
            "advice": Saying("Save by 2023-11-14 23:12 UTC, and resume in another job."),
        },
    ),
    "it gets faster and fits again": (
        lambda: limited(with_a_slow_first_half(clean_run(3, records=1000)), 1.1),
        {"state": "resolved", "noticed_step": Between(1, 4999), "resolved_step": Between(5001, 9999)},
    ),
    "it finishes after all": (
        lambda: limited(clean_run(4, records=1000), 1.0, -500.0),
        {"state": "resolved", "resolved_step": 10_000},
    ),
    "it goes on beyond the limit": (
        lambda: limited(clean_run(4, records=1000), 0.5)[:-1],
        {"state": "resolved", "resolved_step": Between(1, 9999)},
    ),
    "the limit of an earlier session": (
        lambda: limited(clean_run(5, records=1200, sessions=3), 0.0, 1000.0),
        {"state": "resolved", "session": 1},
    ),
    "a job that was requeued is expected to be cut": (
        lambda: limited(clean_run(6, records=600), 0.5, job_restarts=1),
        {"severity": "info"},
    ),
}
SILENT = {
    **{
        f"it fits with a tenth to spare, {about}": Seeds(
            lambda seed, about=about: limited(clean_run(seed, **about), 1.1), 2, 40
        )
        for about in (
            {"speed_noise": 0.5, "log_every": 1},
            {"eval_every": 100, "eval_s": 300.0},
            {"log_every": 50, "sec_per_step": 3.0, "eval_every": 8, "checkpoint_every": 25},
            {"records": 60},
        )
    },
    "neither a slow start nor one long pause is the pace": limited(SLOW_AT_TIMES, 1.05),
    "without planned steps": without_a_plan(limited(clean_run(8), 0.0, 100.0)),
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of(KIND, SAID, SILENT)


def test_a_session_that_gets_a_limit_late_is_judged_as_one_that_always_had_it():
    run = clean_run(9, records=900, sessions=3)
    starts = [place for place, record in enumerate(run) if record["event"] == "start"]
    late = dict(run[starts[1]], job_end_time=run[starts[1]]["time"] + 300.0)
    run[starts[1]] = late
    examiner, _ = detect_one_by_one(run)

    assert [f.session for f in examiner.findings() if f.kind == KIND] == [2]
    assert examine(run) == examiner.findings()
