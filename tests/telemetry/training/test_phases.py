"""Each part of a job as a block, a decorator and a pair of callbacks; and what happens to calls that make no sense."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.telemetry.logged import records_of
from tests.telemetry.training.event_reader import events, spans, train
from toolkit.telemetry.core.guard import MisuseError
from toolkit.telemetry.logger.spans.span import NO_SPAN
from toolkit.telemetry.timing import names

PLAIN = {
    "dist_init": "on_distributed_init",
    "model_init": "on_model_init",
    "dataloader_init": "on_dataloader_init",
    "optimizer_init": "on_optimizer_init",
    "checkpoint_load": "on_load_checkpoint",
    "data_loading": "on_data_loading",
    "forward": "on_forward",
    "zero_grad": "on_zero_grad",
    "backward": "on_backward",
    "optimizer_update": "on_optimizer_update",
    "validation_loop": "on_validation",
    "validation_iteration": "on_validation_single_iteration",
    "testing_loop": "on_testing",
    "testing_iteration": "on_testing_single_iteration",
    "sampling": "on_sampling",
    "application": "on_app",
    "training_loop": "on_train",
}


def test_every_name_of_the_vocabulary_has_a_block_and_callbacks():
    covered = {
        *PLAIN,
        *("training_iteration", "checkpoint_save_sync", "checkpoint_save_async"),
        *("checkpoint_save_finalization", "paused"),
    }

    # `paused` is the logger's own.
    assert covered == {*names.ONE_LOGGER_NAMES, names.SAMPLING, names.PAUSED}


@pytest.mark.parametrize("name", PLAIN)
def test_a_phase_is_a_block_a_decorator_or_two_callbacks(make, clock, name):
    log = make()
    part = getattr(log.training, name)

    with part() as span:
        clock.advance(1.0)
        span.set(seen=True)

    @part()
    def work(seconds):
        """Do it."""
        clock.advance(seconds)
        return "done"

    @part()
    async def work_later(seconds):
        clock.advance(seconds)
        return "done later"

    assert work(2.0) == "done"
    assert (work.__name__, work.__doc__) == ("work", "Do it.")
    assert inspect.iscoroutinefunction(work_later)
    assert asyncio.run(work_later(3.0)) == "done later"

    started = getattr(log.training, PLAIN[name] + "_start")()
    clock.advance(4.0)
    getattr(log.training, PLAIN[name] + "_end")()

    recorded = spans(log, name)
    assert [span["duration"] for span in recorded] == [
        pytest.approx(seconds) for seconds in (1.0, 2.0, 3.0, 4.0)
    ]
    assert recorded[0]["attributes"]["seen"] is True
    assert started.id == recorded[3]["id"]
    assert log.guard.counts == {}


def test_an_exception_is_recorded_on_the_phase_and_raised(log):
    for name in PLAIN:
        with pytest.raises(ValueError, match=name), getattr(log.training, name)():
            raise ValueError(f"{name} went wrong")

    for name in PLAIN:
        [span] = spans(log, name)
        assert span["error"]["type"] == "ValueError"
        assert name in span["error"]["message"]
    assert [error["exception_message"] for error in events(log, "error")] == [
        f"ValueError: {name} went wrong" for name in PLAIN
    ]


def test_callbacks_take_the_time_at_which_it_happened_however_long_ago(log, clock):
    began = clock.wall() - 90_000.0
    for name, callback in PLAIN.items():
        getattr(log.training, callback + "_start")(start_time_msec=began * 1000)
        getattr(log.training, callback + "_end")(finish_time_msec=(began + 36_000) * 1000)

        [span] = spans(log, name)
        assert (span["start"], span["duration"]) == (pytest.approx(began), pytest.approx(36_000))


def test_an_evaluation_that_raised_is_recorded_without_the_failed_iteration(log, clock):
    training = log.training

    @training.validation_iteration()
    def evaluate(batch):
        clock.advance(1.0 / batch)

    with pytest.raises(ZeroDivisionError), training.validation_loop():
        [evaluate(batch) for batch in (1, 0)]

    [recorded] = events(log, "validation_metrics_update")
    assert recorded["total_iteration_time_sec"] == recorded["max_iteration_time_sec"] == pytest.approx(1.0)


MISUSES = {
    "an end without a start": lambda training: training.on_model_init_end(),
    "a second application": lambda training: (training.on_app_start(), training.on_app_start()),
    "an iteration outside of a loop": lambda training: training.training_iteration()(lambda: None)(),
    "a second loop": lambda training: (training.on_train_start(), training.on_train_start()),
    "a part that begins again": lambda training: (training.on_forward_start(), training.on_forward_start()),
    "a checkpoint that ends and never began": lambda training: training.on_save_checkpoint_end(),
    "a success of nothing": lambda training: training.on_save_checkpoint_success(7),
    "an invalid time": lambda training: training.on_app_start(start_time_msec="noon"),
    "an invalid step": lambda training: training.on_save_checkpoint_start("last"),
    "an invalid strategy": lambda training: training.checkpoint_save(1, strategy="later"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_call_that_makes_no_sense_is_counted_and_raises_only_where_that_is_wanted(make, misuse):
    log = make("lenient")
    MISUSES[misuse](log.training)
    assert log.guard.total == 1
    assert "MisuseError" in next(iter(log.guard.counts))

    strict = make("strict", strict=True)
    with pytest.raises(MisuseError):
        MISUSES[misuse](strict.training)


def test_after_a_second_application_the_first_continues(log, clock):
    training = log.training
    with training.application() as first, training.application() as second:
        assert second is NO_SPAN
        clock.advance(1.0)
    with training.application():
        pass

    assert [span["duration"] for span in spans(log, "application")] == [pytest.approx(1.0), 0.0]
    assert spans(log, "application")[0]["id"] == first.id


def test_a_loop_without_an_end_is_ended_by_the_next(log, clock):
    training = log.training
    training.on_train_start()
    train(log, clock, [1.0])
    training.on_train_start(train_iterations_start=5)
    train(log, clock, [1.0])
    training.on_train_end()

    recorded = events(log, "training_metrics_update")
    assert [event["current_iteration"] for event in recorded] == [0, 5]
    assert len(spans(log, "training_loop")) == 2


def test_an_iteration_without_an_end_is_not_counted(log, clock):
    training = log.training
    training.on_train_start()
    for _ in range(3):
        training.on_training_single_iteration_start()
        clock.advance(1.0)
    training.on_training_single_iteration_end()
    training.on_train_end()

    assert events(log, "training_metrics_update")[0]["num_iterations"] == 1
    assert [("error" in span) for span in spans(log, "training_iteration")] == [True, True, False]


def test_an_error_that_a_framework_caught_is_recorded_on_the_open_span(log):
    with log.training.training_loop() as loop:
        log.training.on_error(ValueError("the framework swallowed it"))

    [error] = [event for event in records_of(log, "span_event") if event["name"] == "error"]
    assert error["span_id"] == loop.id
    assert spans(log, "training_loop")[0]["error"]["type"] == "ValueError"


@pytest.mark.parametrize("options", [{"enabled": False}, {"spans": False}])
def test_where_nothing_is_recorded_everything_can_still_be_called(make, options):
    log = make(**options, strict=True)
    training = log.training
    training.configure(global_batch_size=2, log_every_n_train_iterations=1)
    with training.application(), training.training_loop() as loop:
        with training.training_iteration(batch_size=1) as span, training.forward():
            span.set(a=1)
        with training.validation_loop(), training.validation_iteration():
            pass
        with training.checkpoint_save(1):
            pass
        training.on_training_single_iteration_start()
        training.on_training_single_iteration_end()
        training.on_save_checkpoint_start(2, strategy="async")
        training.on_save_checkpoint_end()
        training.on_save_checkpoint_success(2)

    assert loop is NO_SPAN
    assert not [record for record in (records_of(log) if log.run_folder else []) if "span" in record["event"]]
