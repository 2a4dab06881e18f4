"""How fast a run trains: its steps alone, whatever else is done between them, and as many samples as there were."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from tests.telemetry.logged import describe_at_once, make_logger, records_of
from toolkit.telemetry.integrations.logger_setup import share_of_last_step
from toolkit.telemetry.logger import training
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.testing import MemorySink, settle, steps_of


@pytest.fixture(autouse=True)
def _a_machine_that_is_described_at_once(monkeypatch):
    describe_at_once(monkeypatch, {})


@pytest.fixture
def make(tmp_path, clock, close_at_end):
    def make(**options):
        log = close_at_end(make_logger(tmp_path, clock=clock, spans={"around": 0}, **options))
        log.log_start(training={"batch_size": 8})
        return log

    return make


def speeds_of(log):
    """Return what each step record but the first says of the speed."""
    return [
        (record["sec_per_step"], record["samples_per_sec"])
        for record in records_of(log, "step")
        if "sec_per_step" in record
    ]


APART = ["validation_loop", "testing_loop", "sampling", "checkpoint_save_sync", "checkpoint_load", "paused"]
APART += ["checkpoint_save_finalization"]


@pytest.mark.parametrize(("log_every", "records"), [(1, 59), (5, 12)])
@pytest.mark.parametrize("loss", [float, torch.tensor])
def test_what_is_done_in_spans_between_steps_is_no_part_of_a_steps_time(
    make, clock, log_every, records, loss
):
    log = make(log_every=log_every)
    for step in range(1, 61):
        with log.span("training_iteration"):
            clock.advance(0.5)
        log.log_step(step, train_loss=loss(0.5))
        if step % 3 == 0:
            with log.span(APART[step % len(APART)]):
                clock.advance(20.0)

    assert speeds_of(log) == [pytest.approx((0.5, 16.0))] * records


def test_a_step_within_a_span_that_was_never_ended_still_has_a_speed(make, clock):
    log = make(log_every=1)
    log.start_span("checkpoint_load")
    for step in (1, 2, 3):
        clock.advance(1.0)
        log.log_step(step, train_loss=0.5)

    assert speeds_of(log) == [pytest.approx((1.0, 8.0))] * 2


RECORDS = {
    "eval": lambda log, step: log.log_eval(step, val_loss=0.5),
    "sample": lambda log, step: log.log_sample(step, "picture.png"),
    "checkpoint": lambda log, step: log.log_checkpoint(step),
    "epoch": lambda log, step: log.log_epoch(1, global_step=step),
    "epoch without a step": lambda log, step: log.log_epoch(1),
}
KINDS = st.sampled_from(sorted(RECORDS))
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "seconds": st.floats(0.4, 0.8),
            # Which step it says it belongs to, and how long a span of it took.
            "before": st.lists(
                st.tuples(KINDS, st.sampled_from([0, -1]), st.sampled_from([0.0, 7.0])), max_size=3
            ),
            "after": st.lists(st.tuples(KINDS, st.sampled_from([0.0, 0.05, 20.0])), max_size=3),
        }
    ),
    min_size=3,
    max_size=12,
)


@pytest.mark.parametrize("loss", [float, torch.tensor])
@pytest.mark.parametrize("in_spans", [False, True])
@pytest.mark.parametrize("log_every", [1, 3])
def test_records_in_any_order_leave_the_speed_that_of_the_iterations(make, clock, loss, in_spans, log_every):
    sink = MemorySink()
    log = make(log_every=log_every, sinks=[sink])
    taken = []

    # A logger is made once, so that an example follows the one before it: it is not made smaller.
    @settings(max_examples=longer(25, 2000), deadline=None, database=None, phases=[Phase.generate])
    @given(STEPS)
    def train(steps):
        for step in steps:
            with log.span("training_iteration") if in_spans else nullcontext():
                clock.advance(step["seconds"])
            number = len(taken)
            taken.append(step["seconds"])
            for kind, belongs_to, seconds in step["before"]:
                if seconds:
                    with log.span("validation_loop"):
                        clock.advance(seconds)
                RECORDS[kind](log, number + belongs_to)
            log.log_step(number, train_loss=loss(0.5))
            for kind, seconds in step["after"]:
                clock.advance(seconds)
                RECORDS[kind](log, number)
            if in_spans:
                # Such as emptying a cache: it belongs to no record and to no span.
                clock.advance(0.3 if step["after"] else 0.0)
        settle(log)
        for record in steps_of(sink):
            number = record["global_step"] + 1
            # Where it is measured from a later step on, it is the mean of fewer iterations.
            parts = [taken[first:number] for first in range(number - log_every, number)]
            seconds = record["sec_per_step"] if number > 1 else taken[0]
            assert any(seconds == pytest.approx(sum(part) / len(part)) for part in parts if part)
        sink.records.clear()

    train()


@pytest.mark.parametrize("log_every", [1, 5])
def test_a_speed_that_nothing_tells_apart_from_an_evaluation_is_absent(make, clock, log_every):
    log = make(log_every=log_every)
    for step in range(1, 41):
        clock.advance(0.5)
        if step % 10 == 0:
            clock.advance(20.0)
            log.log_eval(step, val_loss=0.5)
        log.log_step(step, train_loss=0.5)

    found = {record["global_step"]: record.get("sec_per_step") for record in records_of(log, "step")}
    assert {step: seconds for step, seconds in found.items() if step % 10} == {
        step: pytest.approx(0.5) if step > 1 else None for step in found if step % 10
    }
    assert [found[step] for step in (10, 20, 30, 40)] == [None] * 4


def test_the_seconds_of_a_checkpoint_count_once_however_it_is_logged(make, clock):
    log = make(log_every=10)
    for step in range(1, 41):
        clock.advance(0.5)
        log.log_step(step, train_loss=0.5)
        if step == 13:
            # Between two records, and in no span: nothing else says how long it took.
            clock.advance(20.0)
            log.log_checkpoint(step, "absent.safetensors", seconds=20.0)
        if step == 23:
            with log.span("checkpoint_save_sync"):
                clock.advance(20.0)
            log.log_checkpoint(step, "absent.safetensors", seconds=20.0)
        if step == 30:
            with log.span("checkpoint_save_sync"):
                clock.advance(20.0)
            clock.advance(1.0)
            log.log_checkpoint(step, "absent.safetensors", seconds=21.0)

    assert speeds_of(log) == [pytest.approx((0.5, 16.0))] * 4


def test_what_another_thread_logs_takes_nothing_from_a_step(make, clock):
    log = make(log_every=1)
    for step in range(1, 5):
        clock.advance(0.5)
        saving = threading.Thread(target=log.log_checkpoint, args=(step, "absent.safetensors"))
        saving.start()
        saving.join()
        clock.advance(0.5)
        log.log_step(step, train_loss=0.5)

    assert speeds_of(log) == [pytest.approx((1.0, 8.0))] * 3


def test_the_thread_that_logs_the_steps_is_the_one_that_trains(make, clock):
    log = make(log_every=1)

    def loop():
        for step in range(1, 5):
            clock.advance(1.0)
            log.log_step(step, train_loss=0.5)
            with log.training.validation_loop():
                clock.advance(20.0)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()

    assert speeds_of(log) == [pytest.approx((1.0, 8.0))] * 3


def test_importing_the_phases_of_a_training_is_no_part_of_a_step(make, clock, monkeypatch):
    log, made = make(log_every=1), training.TrainingTelemetry
    monkeypatch.setattr(
        training, "TrainingTelemetry", lambda *a, **k: (clock.advance(20.0), made(*a, **k))[1]
    )
    for step in range(1, 5):
        clock.advance(1.0)
        log.log_step(step, train_loss=0.5)
        with log.training.validation_loop():
            clock.advance(20.0)

    assert speeds_of(log) == [pytest.approx((1.0, 8.0))] * 3


def test_a_short_batch_counts_as_what_it_is(make, clock):
    log = make(log_every=2)
    for step in range(1, 9):
        clock.advance(0.5)
        if step == 4:
            internals(log).count_samples(0.25)
        log.log_step(step, train_loss=0.5)

    assert [rate for _, rate in speeds_of(log)] == pytest.approx([16.0, 10.0, 16.0, 16.0])


def test_parts_of_a_step_in_an_evaluation_are_not_the_trainings(make, clock):
    log = make(log_every=2)

    def one(seconds):
        with log.span("data_loading"):
            clock.advance(seconds)
        with log.span("forward"):
            clock.advance(seconds)

    for step in range(1, 7):
        with log.span("training_iteration"):
            one(0.5)
            log.log_step(step, train_loss=0.5)
        if step == 3:
            with log.span("validation_loop"):
                for _ in range(4):
                    with log.span("validation_iteration"):
                        one(5.0)
            with log.span("sampling"):
                one(5.0)
    found = records_of(log, "step")

    assert [record["time/forward"] for record in found[1:]] == pytest.approx([0.5, 1.0, 1.0])
    assert [record["time/data_loading"] for record in found[1:]] == pytest.approx([0.5, 1.0, 1.0])
    assert [record["ledger/data_wait"] for record in found[1:]] == pytest.approx([0.5, 1.0, 1.0])
    assert found[2]["ledger/validation"] == pytest.approx(40.0)
    assert found[2]["ledger/sampling"] == pytest.approx(10.0)
    assert [seconds for seconds, _ in speeds_of(log)] == pytest.approx([1.0, 1.0, 1.0])


def test_an_evaluation_whose_end_is_never_logged_ends_with_the_next_step(make, clock):
    log = make(log_every=1)
    log.log_step(1, train_loss=0.5)
    log.start_span("validation_loop")
    for step in (2, 3):
        with log.span("forward"):
            clock.advance(0.5)
        log.log_step(step, train_loss=0.5)
    found = records_of(log, "step")

    assert "time/forward" not in found[1]
    assert found[2]["time/forward"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("data", "samples", "share"), [(range(10), 4, 0.5), (range(8), 4, 1), (iter("ab"), 4, 1), ("ab", None, 1)]
)
def test_the_last_step_of_an_epoch_counts_for_its_share(data, samples, share):
    assert share_of_last_step(data, samples) == share
