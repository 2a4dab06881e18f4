from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run, detect, paused
from tests.lengths import longer


@pytest.mark.parametrize("seed", range(longer(2, 5)))
@pytest.mark.parametrize("log_every", [1, 10, 100])
def test_steps_that_stop_are_reported_while_they_do_not_come(seed, log_every):
    records = paused(clean_run(seed, log_every=log_every), 200 * log_every, 2000.0)
    during = [record for record in records if record["elapsed"] <= _time_of(records, 200 * log_every) + 900.0]

    (finding,) = detect(during, "stalled")

    assert finding.is_open
    assert finding.start_step == finding.noticed_step == 200 * log_every
    assert finding.severity == "warning"


def test_the_next_step_ends_it():
    (finding,) = detect(paused(clean_run(1), 2000, 2000.0), "stalled")

    assert finding.state == "resolved"
    assert 2001 <= finding.resolved_step <= 2010
    assert finding.evidence["seconds"] >= 1995
    assert finding.message.endswith("Then it went on.")


def test_a_gap_between_two_steps_is_reported_where_nothing_else_is_written():
    records = paused(clean_run(1, with_system=False), 2000, 120.0, heartbeats=False)

    (finding,) = detect(records, "stalled")

    assert (finding.start_step, finding.end_step, finding.state) == (2000, 2010, "resolved")
    assert finding.severity == "info"


def test_a_run_that_hangs_becomes_loud_after_five_minutes():
    quiet = paused(clean_run(1, eval_every=20, eval_s=10.0), 2010, 150.0)
    loud = paused(clean_run(1, eval_every=20, eval_s=10.0), 2010, 400.0)

    assert [finding.severity for finding in detect(quiet, "stalled")] == ["info"]
    assert [finding.severity for finding in detect(loud, "stalled")] == ["warning"]


NO_STALLS = {
    "an evaluation that its record explains": lambda: clean_run(1, eval_every=25, eval_s=280.0),
    "the time between two sessions": lambda: clean_run(1, sessions=4),
    "a longer interval": lambda: clean_run(1, then_log_every=2000, records=100, with_system=False),
    "a clock that is put right": lambda: changed(
        clean_run(1), "time", lambda step, time: time + (7200 if step > 2000 else 0)
    ),
    "after the last step": lambda: paused(clean_run(1), 4000, 3000.0),
}


@pytest.mark.parametrize("run", NO_STALLS.values(), ids=NO_STALLS)
def test_other_pauses_are_no_stall(run):
    assert detect(run(), "stalled") == []


def test_once_long_evaluations_are_known_longer_ones_are_waited_for():
    records = paused(clean_run(1, eval_every=25, eval_s=280.0), 2010, 600.0)
    during = [record for record in records if record["elapsed"] <= _time_of(records, 2010) + 600.0]

    assert detect(during, "stalled") == []
    assert len(detect(records, "stalled")) == 1


@pytest.mark.parametrize("says", [{"first_step": 0}, {}])
def test_a_long_save_after_the_last_step_of_a_loop_that_counts_from_zero_is_no_stall(says):
    steps = [
        {"event": "step", "global_step": step, "elapsed": 1.0 * step, "train_loss": 0.5}
        for step in range(200)
    ]
    late = {"event": "system", "elapsed": 3_000.0, "global_step": 199, "cpu_percent": 5.0}
    if says:
        steps = steps[100:]
    start = {"event": "start", "session": 1, "elapsed": 0.0, **says}

    assert detect([{**start, "max_steps": 201}, *steps, late], "stalled") != []
    assert detect([{**start, "max_steps": 200}, *steps, late], "stalled") == []


def _time_of(records, step):
    return next(
        record["elapsed"] for record in records if record["global_step"] == step and record["event"] == "step"
    )


# ---------------------------------------------------------------- pauses that the run reported itself


def _hang(records, step, seconds, **fields):
    """Return the records with the run's own finding among them, `seconds` after `step`."""
    at = _time_of(records, step) + seconds
    reported = {
        "event": "finding",
        "elapsed": at,
        "time": at,
        "global_step": step,
        "session": 1,
        "id": f"1-hang-global_step-{step}",
        "kind": "hang",
        "severity": "info",
        "metric": "global_step",
        "start_step": step,
        "noticed_step": step,
        "state": "open",
        "message": "No step.",
        **fields,
    }
    before = [record for record in records if record["elapsed"] <= at]
    return [*before, reported, *records[len(before) :]]


@pytest.mark.parametrize("heartbeats", [True, False])
def test_a_pause_that_the_run_reported_as_a_hang_is_not_reported_twice(heartbeats):
    records = paused(clean_run(1, with_system=heartbeats), 2000, 2000.0, heartbeats=heartbeats)

    assert len(detect(records, "stalled")) == 1
    assert detect(_hang(records, 2000, 70.0), "stalled") == []
    assert [finding.message for finding in detect(_hang(records, 2000, 70.0), "hang")] == ["No step."]


def test_a_stall_reported_just_before_the_hang_is_resolved_with_it():
    records = paused(clean_run(1), 2000, 2000.0)

    (finding,) = detect(_hang(records, 2000, 700.0), "stalled")

    assert finding.state == "resolved"
    assert finding.evidence["seconds"] < 720


def test_the_next_pause_is_reported():
    records = paused(paused(clean_run(1), 2000, 2000.0), 2500, 2000.0)

    assert [finding.start_step for finding in detect(_hang(records, 2000, 70.0), "stalled")] == [2500]


def test_an_error_that_the_run_survives_ends_no_watch():
    records = paused(clean_run(1), 2000, 2000.0)
    at = _time_of(records, 1000)
    error = {"event": "error", "elapsed": at, "time": at, "type": "ValueError"}
    place = next(number for number, record in enumerate(records) if record["elapsed"] > at)

    assert len(detect([*records[:place], error, *records[place:]], "stalled")) == 1
