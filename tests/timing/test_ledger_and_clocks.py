"""The ledger of runs of a real logger whose clock is set, whose machine sleeps, and whose spans are dated."""

from __future__ import annotations

import threading

import pytest

from tests.telemetry.logged import describe_at_once, make_logger
from toolkit.telemetry.timing.history import read_run_time

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _a_machine_that_is_described_at_once(monkeypatch):
    describe_at_once(monkeypatch, {})


@pytest.fixture
def log(tmp_path, clock):
    log = make_logger(tmp_path, clock=clock, log_every=5, diagnostics=False)
    # What a thread does in the background, these tests do where it matters.
    log._run.periodic.close(60.0)
    yield log
    log.close()


def seconds_of(log, clock):
    """Close the run and return its ledger's entries and notes."""
    log.close()
    ledger = read_run_time(log.run_folder, wall=clock.wall).ledger
    return {line.entry: round(line.seconds, 3) for line in ledger.lines if line.seconds > 1e-3}, ledger


def steps(log, clock, count=100, between=lambda step: None):
    for step in range(1, count + 1):
        with log.span("training_iteration"):
            clock.advance(0.9)
        log.log_step(step, train_loss=1.0)
        between(step)
        log._run.spans.tend()


@pytest.mark.parametrize("name", ["my own", "validation_loop"])
@pytest.mark.parametrize("jump", [HOUR, -HOUR, 20 * HOUR])
def test_a_clock_that_is_set_within_a_span_adds_nothing(log, clock, name, jump):
    """A machine that sleeps looks the same: its wall clock advances, and the other does not."""

    def between(step):
        if step == 50:
            with log.span(name):
                clock.advance(0.5)
                clock.set_wall(clock.wall() + jump)
                clock.advance(2.0)
                log._run.spans.tend()
                clock.advance(0.5)

    log.log_start()
    with log.span("application"), log.span("training_loop"):
        steps(log, clock, between=between)
    found, ledger = seconds_of(log, clock)

    where = "validation" if name == "validation_loop" else "other_spans"
    assert found == {"training": 90.0, where: 3.0}
    assert ledger.goodput == pytest.approx(90 / 93)
    assert any("wall clock" in note for note in ledger.notes)


def test_a_span_that_is_dated_right_after_the_clock_was_set_is_where_it_was(log, clock):
    log.log_start()
    with log.span("application"):
        clock.advance(3.0)
        clock.set_wall(clock.wall() + 20 * HOUR)
        log.start_span("validation_loop", start_time=clock.wall() - 2).stop(stop_time=clock.wall() - 1)
        with log.span("training_loop"):
            steps(log, clock)
    found, _ = seconds_of(log, clock)

    assert found == {"training": 90.0, "validation": 1.0, "startup": 2.0}


@pytest.mark.parametrize("spans", [{}, "all", {"around": 0}])
@pytest.mark.parametrize("live_data", [True, False])
def test_iterations_recorded_at_their_end_count_once(tmp_path, clock, spans, live_data):
    log = make_logger(tmp_path, clock=clock, log_every=5, diagnostics=False, spans=spans)
    log.log_start()
    with log.training.application(), log.training.training_loop():
        for step in range(1, 101):
            began = clock.wall()
            if live_data:
                with log.span("data_loading"):
                    clock.advance(0.3)
            else:
                clock.advance(0.3)
                log.start_span("data_loading", start_time=began).stop(stop_time=clock.wall())
            clock.advance(0.7)
            ended = clock.wall()
            clock.advance(0.5)
            # With the data in it: what these have had they keep.
            log.training.on_training_single_iteration_start(start_time_msec=began * 1000)
            log.training.on_training_single_iteration_end(finish_time_msec=ended * 1000)
            log.log_step(step, train_loss=1.0)
    found, _ = seconds_of(log, clock)

    assert found == {"training": 70.0, "data_wait": 30.0, "unaccounted": 50.0}


def test_data_loaded_by_another_thread_is_not_a_wait_and_is_noted(log, clock):
    def load():
        with log.span("data_loading"):
            clock.advance(0.5)

    log.log_start()
    with log.span("application"), log.span("training_loop"):
        for step in range(1, 101):
            worker = threading.Thread(target=load)
            worker.start()
            worker.join()
            with log.span("training_iteration"):
                clock.advance(0.5)
            log.log_step(step, train_loss=1.0)
    found, ledger = seconds_of(log, clock)

    assert found == {"training": 50.0, "unaccounted": 50.0}
    assert [note for note in ledger.notes if note.startswith("Data was loaded for 50 s on threads other")]
