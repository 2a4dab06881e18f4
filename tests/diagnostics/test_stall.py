"""Steps that stop, by the clock of the records; and pauses that the run reported itself, as a hang."""

from __future__ import annotations

from tests.diagnostics.synthetic_runs import changed, clean_run, detect, paused
from tests.diagnostics.what_is_said import Between, Saying, Seeds, contract_of
from tests.made_runs import finding_record


def time_of(records, step):
    return next(
        record["elapsed"] for record in records if record["global_step"] == step and record["event"] == "step"
    )


def so_far(records, step, seconds):
    """Return what there is `seconds` after a step."""
    return [record for record in records if record["elapsed"] <= time_of(records, step) + seconds]


def stopped(seed, log_every):
    """A run whose steps have not come for a quarter of an hour."""
    records = paused(clean_run(seed, log_every=log_every), 200 * log_every, 2000.0)
    return so_far(records, 200 * log_every, 900.0)


def saving_at_the_end(max_steps, *, first=0, **start):
    """A loop that counts from zero, and saves for long after step 199."""
    steps = [
        {"event": "step", "global_step": step, "elapsed": 1.0 * step, "train_loss": 0.5}
        for step in range(first, 200)
    ]
    late = {"event": "system", "elapsed": 3_000.0, "global_step": 199, "cpu_percent": 5.0}
    start = {"event": "start", "session": 1, "elapsed": 0.0, "max_steps": max_steps, **start}
    return [start, *steps, late]


def with_hang(records, seconds, **fields):
    """Return the records with the run's own finding among them, so long after step 2,000."""
    before = so_far(records, 2000, seconds)
    at = time_of(records, 2000) + seconds
    hang = finding_record("hang", 2000, time=at, metric="global_step", severity="info", message="No step.")
    return [*before, {**hang, "elapsed": at, "global_step": 2000, **fields}, *records[len(before) :]]


def with_an_error(records):
    place = len(so_far(records, 1000, 0.0))
    error = {"event": "error", "elapsed": time_of(records, 1000), "type": "ValueError"}
    return [*records[:place], error, *records[place:]]


SHORT_EVALUATIONS, LONG_EVALUATIONS = {"eval_every": 20, "eval_s": 10.0}, {"eval_every": 25, "eval_s": 280.0}
SAID = {
    **{
        f"steps stop that were logged each {log_every}": (
            Seeds(lambda seed, log_every=log_every: stopped(seed, log_every)),
            {
                "state": "open",
                "start_step": 200 * log_every,
                "noticed_step": 200 * log_every,
                "severity": "warning",
            },
        )
        for log_every in (1, 10, 100)
    },
    "the next step ends it": (
        lambda: paused(clean_run(1), 2000, 2000.0),
        {
            "state": "resolved",
            "resolved_step": Between(2001, 2010),
            "seconds": Between(1995, 2100),
            "message": Saying("Then it went on."),
        },
    ),
    "a gap between two steps where nothing else is written": (
        lambda: paused(clean_run(1, with_system=False), 2000, 120.0, heartbeats=False),
        {"start_step": 2000, "end_step": 2010, "state": "resolved", "severity": "info"},
    ),
    **{
        f"a pause of {seconds} s": (
            lambda seconds=seconds: paused(clean_run(1, **SHORT_EVALUATIONS), 2010, seconds),
            {"severity": severity},
        )
        for seconds, severity in ((150.0, "info"), (400.0, "warning"))
    },
    "longer than the longest evaluation": (
        lambda: paused(clean_run(1, **LONG_EVALUATIONS), 2010, 600.0),
        {"start_step": 2010},
    ),
    "a pause before the last of the planned steps": (
        saving_at_the_end(201, first=100, first_step=0),
        {"start_step": 199},
    ),
    "an error that the run survives ends no watch": (
        lambda: with_an_error(paused(clean_run(1), 2000, 2000.0)),
        {"start_step": 2000},
    ),
    "a stall that was found just before the hang is over with it": (
        lambda: with_hang(paused(clean_run(1), 2000, 2000.0), 700.0),
        {"state": "resolved", "seconds": Between(0, 719)},
    ),
    "the next pause after a hang": (
        lambda: with_hang(paused(paused(clean_run(1), 2000, 2000.0), 2500, 2000.0), 70.0),
        {"start_step": 2500},
    ),
}
SILENT = {
    "an evaluation that its record explains": lambda: clean_run(1, **LONG_EVALUATIONS),
    "once long evaluations are known": lambda: so_far(
        paused(clean_run(1, **LONG_EVALUATIONS), 2010, 600.0), 2010, 600.0
    ),
    "the time between two sessions": lambda: clean_run(1, sessions=4),
    "a longer interval": lambda: clean_run(1, then_log_every=2000, records=100, with_system=False),
    "a clock that is put right": lambda: changed(
        clean_run(1), "time", lambda step, time: time + (7200 if step > 2000 else 0)
    ),
    "after the last step": lambda: paused(clean_run(1), 4000, 3000.0),
    "a long save after the last of the planned steps": saving_at_the_end(200),
    "a resumed run that says from where it counts": saving_at_the_end(200, first=100, first_step=0),
    **{
        f"reported as a hang by the run, {heartbeats=}": lambda heartbeats=heartbeats: with_hang(
            paused(clean_run(1, with_system=heartbeats), 2000, 2000.0, heartbeats=heartbeats), 70.0
        )
        for heartbeats in (True, False)
    },
}

test_one_finding_has_these_facts, test_nothing_is_found = contract_of("stalled", SAID, SILENT)


def test_what_the_run_reported_is_said_in_its_words():
    found = detect(with_hang(paused(clean_run(1), 2000, 2000.0), 70.0), "hang")

    assert [finding.message for finding in found] == ["No step."]
