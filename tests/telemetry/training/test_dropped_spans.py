"""A part of the job that is not to be written takes nothing else with it."""

from __future__ import annotations

import time

import pytest

from tests.telemetry.logged import records_of
from tests.telemetry.training.event_reader import spans
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.logger.spans.span import NO_SPAN

PARTS = (
    *("application", "training_loop", "training_iteration", "validation_loop", "validation_iteration"),
    *("testing_loop", "testing_iteration", "checkpoint_save_sync"),
)


def play(make, name, drop=()):
    """Play a job by a clock of its own, and return its logger."""
    clock = ManualClock()
    log = make(name, clock=clock, strict=True, spans={"drop": list(drop), "around": 0, "keep": ["forward"]})
    training = log.training
    training.configure(global_batch_size=4, log_every_n_train_iterations=2, flops_per_sample=1e9)
    with training.application():
        with training.training_loop(train_iterations_start=0) as loop:
            loop.event("halfway", there=True)
            for step in range(5):
                with training.training_iteration(), training.forward():
                    clock.advance(1.0)
                log.log_step(step, train_loss=1.0)
            with training.validation_loop(), training.validation_iteration():
                clock.advance(2.0)
            with training.checkpoint_save(5):
                clock.advance(3.0)
        with training.testing_loop(), training.testing_iteration():
            clock.advance(1.0)
    training.on_app_start()
    training.on_train_start()
    training.on_training_single_iteration_start(start_time_msec=(clock.wall() - 1.0) * 1000)
    training.on_training_single_iteration_end()
    training.on_train_end()
    training.on_app_end()
    with pytest.raises(ValueError, match="bad"), training.training_loop(), training.training_iteration():
        raise ValueError("bad")
    log.close()
    return log


def figures(log):
    """Return every event of the job without what differs from run to run."""
    found = []
    for event in records_of(log, "span_event"):
        about = {
            name: value for name, value in event.get("attributes", {}).items() if "session_tag" not in name
        }
        found.append((event["name"], event.get("span"), about))
    return found


def ledger(log):
    totals = {}
    for record in (*records_of(log, "step"), *records_of(log, "ledger")):
        for name, value in record.items():
            if name.startswith("ledger/"):
                totals[name] = totals.get(name, 0.0) + value
    return {name: pytest.approx(value) for name, value in totals.items()}


@pytest.mark.parametrize("drop", [*([part] for part in PARTS), PARTS], ids=lambda drop: "+".join(drop)[:30])
def test_the_figures_of_a_job_do_not_depend_on_which_spans_are_written(make, drop):
    whole, without = play(make, "whole"), play(make, "without", drop)

    assert figures(without) == figures(whole)
    assert ledger(without) == ledger(whole)
    assert without.guard.total == whole.guard.total == 0
    assert {span["name"] for span in spans(without)} == {span["name"] for span in spans(whole)} - set(drop)
    assert not {span["name"] for span in records_of(without, "span_start")} & set(drop)
    kept = {span["id"] for span in spans(without)}
    assert all(span.get("parent_id") in (None, *kept) for span in spans(without)), "the tree is whole"
    assert all(event.get("span_id") in (None, *kept) for event in records_of(without, "span_event"))


def test_what_is_dropped_is_not_among_the_open_spans(make):
    log = make(spans={"drop": ["training_loop"]})
    with log.training.training_loop(), log.span("mine"):
        assert [span["name"] for span in log._run.spans.open_now()] == ["mine"]
        assert log._run.spans.path() == ["mine"]


def test_a_dropped_name_that_no_figure_needs_is_no_span(make):
    log = make(spans={"drop": ["noise", "forward"]})

    assert log.span("noise") is NO_SPAN
    assert log.span("forward") is NO_SPAN


def test_stopping_twice_is_reported(make):
    log = make(spans={"drop": ["training_loop"]})
    span = log.start_span("training_loop", start_time=time.time() - 5)
    span.stop()
    span.stop()

    assert log.guard.total == 1
