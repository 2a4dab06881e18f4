from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from tests.timing.replayed_runs import Killed, PlayedRun
from toolkit.telemetry.timing.ledger import LedgerBuilder
from toolkit.telemetry.timing.names import ENTRIES

# A replayed run has a few hundred decisions: shrinking a failure takes minutes and explains little more.
tries = settings(
    max_examples=longer(20, 80),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)

seconds = st.floats(0.01, 2.0)
session_plans = st.fixed_dictionaries(
    {
        "lead_s": st.sampled_from([0.0, 0.0, 12.5]),
        "init_s": st.floats(0.0, 40.0),
        "before_loop_s": st.floats(0.0, 20.0),
        "steps": st.integers(0, 120),
        "data_s": seconds,
        "work_s": seconds,
        "outside_s": st.sampled_from([0.0, 0.05, 0.5]),
        "validate_every": st.integers(5, 60),
        "validation_s": st.floats(0.1, 40.0),
        "save_every": st.integers(5, 50),
        "save_s": st.floats(0.05, 15.0),
        "sample_every": st.integers(20, 80),
        "sampling_s": st.floats(0.1, 20.0),
        "pause_at": st.integers(0, 150),
        "pause_s": st.floats(1.0, 90.0),
        "hang_at": st.integers(0, 150),
        "hangs_in": st.sampled_from(["training", "data_wait", None]),
        "kill_after_s": st.floats(0.5, 400.0) | st.just(float("inf")),
        "resume": st.integers(0, 3),
        "apart_s": st.floats(1.0, 500.0),
        "says_resumed": st.booleans(),
    }
)
"""What one session does. It resumes from the newest checkpoint, or from one of the three before."""


def play(run, plan, saved):
    """Play one session; return the checkpoints that can be resumed from."""
    known = saved[: len(saved) - plan["resume"]] if plan["resume"] < len(saved) else saved[:1]
    run.begin(
        known[-1] if known else None,
        kill_after_s=plan["kill_after_s"],
        apart_s=plan["apart_s"],
        lead_s=plan["lead_s"],
        says_resumed=plan["says_resumed"],
    )
    intervals = 0
    try:
        run.spend("startup", plan["init_s"])
        run.spend(None, plan["before_loop_s"])
        run.start_loop(with_span=bool(run.timed))
        for number in range(1, plan["steps"] + 1):
            hang_s = 0.0
            if number == plan["hang_at"] and intervals > 2 * run.log_every:
                hang_s = 60.0 + 40.0 * run.usual_interval_s
            run.make_step(plan["data_s"], plan["work_s"], plan["outside_s"], hang_s, plan["hangs_in"])
            intervals += 1
            if number % plan["validate_every"] == 0:
                run.spend("validation", plan["validation_s"])
            if number % plan["save_every"] == 0:
                new = run.save(plan["save_s"])
                # A file of the same name replaces the one before.
                saved = [*(old for old in saved if old[0] != new[0]), new]
            if number % plan["sample_every"] == 0:
                run.spend("sampling", plan["sampling_s"])
            if number == plan["pause_at"]:
                run.spend("control", plan["pause_s"])
        run.end()
    except Killed:
        run.cut_off()
    return saved


def read(run, pieces):
    """Read the run's records in some pieces, looking at the ledger after each, as a page does."""
    builder = LedgerBuilder()
    length = len(run.records) // pieces + 1
    for first in range(0, len(run.records), length):
        builder.take(run.records[first : first + length])
        builder.ledger()
    return builder.ledger()


def assert_is_true(ledger, run):
    found = {line.entry: line.seconds for line in ledger.lines}
    truth, _ = run.truth()
    assert list(found) == list(ENTRIES)
    assert min(found.values()) >= 0.0
    assert ledger.wall_s == pytest.approx(run.wall_s, abs=1e-5)
    assert sum(found.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert sum(line.share for line in ledger.lines) == pytest.approx(1.0 if ledger.wall_s else 0.0)
    # Two things cannot be known exactly: what a killed loop did in the five seconds after its last record, and how long
    # the interval in which it hung would have taken otherwise.
    near = 0.5 + 0.002 * run.wall_s + 5.0 * run.kills + run.usual_interval_s * run.hangs
    if not run.timed:
        # Nor that a killed loop was saving, if it has no spans.
        near += run.unfinished_saves_s
    assert found == pytest.approx({entry: truth[entry] for entry in ENTRIES}, abs=near)


ALL = frozenset({"startup", "data_wait", "training", "validation", "checkpoint", "sampling", "control"})


@tries
@given(
    plans=st.lists(session_plans, min_size=1, max_size=4),
    log_every=st.sampled_from([1, 3, 10]),
    timed=st.sampled_from([ALL, ALL, ALL - {"training"}]),
    pieces=st.integers(1, 4),
)
def test_every_second_is_where_it_belongs(plans, log_every, timed, pieces):
    run = PlayedRun(log_every=log_every, timed=timed, watts=300.0)
    saved = []
    for plan in plans:
        saved = play(run, plan, saved)
    ledger = read(run, pieces)

    assert_is_true(ledger, run)
    assert ledger.between_sessions_s == pytest.approx(run.between_s, abs=1e-5)
    assert [session.session for session in ledger.sessions] == list(range(1, len(plans) + 1))
    assert sum(session.wall_s for session in ledger.sessions) == pytest.approx(ledger.wall_s)
    # The first sample comes after five seconds, and a process that began before its logger was not sampled.
    sampled_s = run.wall_s - sum(5.0 + plan["lead_s"] for plan in plans)
    assert (ledger.kwh or 0.0) * 3.6e6 <= 300.0 * run.wall_s + 1e-3
    assert (ledger.kwh or 0.0) * 3.6e6 >= 300.0 * sampled_s - 1e-3


@tries
@given(
    plans=st.lists(session_plans, min_size=1, max_size=3),
    log_every=st.sampled_from([1, 10]),
    pieces=st.integers(1, 3),
)
def test_a_loop_that_times_nothing_is_startup_training_and_checkpoints(plans, log_every, pieces):
    run = PlayedRun(log_every=log_every, timed=frozenset())
    saved = []
    for plan in plans:
        quiet = {"validation_s": 0.0, "sampling_s": 0.0, "pause_s": 0.0, "lead_s": 0.0}
        saved = play(run, {**plan, **quiet}, saved)
    ledger = read(run, pieces)

    # Where the first step began is reckoned from how long the others took.
    run.kills = len(plans)
    assert_is_true(ledger, run)
    inferred = {line.entry for line in ledger.lines if line.inferred}
    assert inferred <= {"training", "startup"}
    assert "training" in inferred or ledger.goodput in (None, 0.0)
