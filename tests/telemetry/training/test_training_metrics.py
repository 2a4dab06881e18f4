"""What `training_metrics_update` contains: totals of the job, and nothing lost at the end."""

from __future__ import annotations

import pytest

from tests.records import read_records
from tests.telemetry.logged import records_of
from tests.telemetry.training.event_reader import events, spans, train

CONFIG = {
    "global_batch_size": 4,
    "seq_length": 8,
    "flops_per_sample": 1e12,
    "world_size": 2,
    "log_every_n_train_iterations": 3,
}


@pytest.mark.parametrize("kept", ["all", {"around": 0}], ids=["written one by one", "only added up"])
def test_an_event_has_totals_of_the_job(make, clock, kept):
    log = make(spans=kept)
    log.training.configure(**CONFIG)
    with log.training.training_loop(train_iterations_start=9) as loop:
        train(log, clock, [1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 0.5])

    _, second, rest = events(log, "training_metrics_update")
    times = {"avg": 11.0, "min": 1.0, "max": 30.0, "total": 66.0}
    expected = {
        "train_iterations_start": 9,
        "current_iteration": 14,
        "num_iterations": 6,
        "train_samples_start": 36,
        "num_train_samples": 24,
        "interval": 3,
        **{f"{name}_iteration_time_sec": seconds for name, seconds in times.items()},
        "avg_tflops": 24 / 66,
        "train_tokens": 192,
        "avg_tokens_per_second": 192 / 66,
        "avg_batch_size": 4.0,
        "completed_floating_point_operations_overall": 60e12,
        "total_flops": 24e12,
        "train_throughput_per_gpu": 24 / 66 / 2,
        # Of single iterations, and not of the average as it goes.
        "train_throughput_per_gpu_max": 4 / 1 / 2,
        "train_throughput_per_gpu_min": 4 / 30 / 2,
        "first_logged_train_iterations_finish_timestamp_sec": loop.start + 1.0,
        "last_logged_train_iterations_finish_timestamp_sec": loop.start + 66.0,
    }
    assert second == {name: pytest.approx(value) for name, value in expected.items()}
    assert (rest["num_iterations"], rest["interval"], rest["total_iteration_time_sec"]) == (7, 1, 66.5)


@pytest.mark.parametrize(
    ("every", "start", "iterations", "reported"), [(50, 90, 15, [99, 104]), (1, 0, 2, [0, 1])]
)
def test_a_resumed_job_reports_at_the_same_iterations_as_the_one_before_it(
    log, clock, every, start, iterations, reported
):
    log.training.configure(log_every_n_train_iterations=every)
    with log.training.training_loop(train_iterations_start=start):
        train(log, clock, [1.0] * iterations)

    assert [event["current_iteration"] for event in events(log, "training_metrics_update")] == reported


def test_an_iteration_that_raised_is_not_counted_and_the_rest_is_written(log, clock):
    @log.training.application()
    @log.training.training_loop()
    def job():
        train(log, clock, [1.0, 1.0])
        with log.training.training_iteration():
            clock.advance(5.0)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        job()

    [recorded] = events(log, "training_metrics_update")
    assert (recorded["num_iterations"], recorded["max_iteration_time_sec"]) == (2, pytest.approx(1.0))
    assert [span["name"] for span in spans(log) if "error" in span] == [
        "training_iteration",
        "training_loop",
        "application",
    ]
    [error] = [event for event in records_of(log, "span_event") if event["name"] == "error"]
    assert error["span"] == "training_iteration"
    assert error["attributes"]["exception_type"] == "RuntimeError"
    assert "out of memory" in error["attributes"]["exception_message"]
    assert "test_training_metrics.py" in error["attributes"]["exception_traceback"]


def test_closing_the_logger_inside_the_loop_writes_the_rest(log, clock):
    log.training.on_app_start()
    clock.advance(1.0)
    log.training.on_train_start()
    train(log, clock, [1.0, 2.0])
    log.close()

    path = log.run_folder / "metrics.jsonl"
    recorded = [
        event for event in read_records(path, "span_event") if event["name"] == "training_metrics_update"
    ]
    assert [event["attributes"]["num_iterations"] for event in recorded] == [2]
    assert [span["name"] for span in read_records(path, "span") if span.get("unfinished")] == [
        "training_loop",
        "application",
    ]


def test_the_latest_loss_is_that_of_the_step_records(log, clock):
    training = log.training
    training.configure(log_every_n_train_iterations=1)
    training.on_train_start()
    for loss in (2.0, 0.25):
        training.on_training_single_iteration_start()
        clock.advance(1.0)
        log.log_step(1, train_loss=loss)
        training.on_training_single_iteration_end()

    losses = [event["latest_loss"] for event in events(log, "training_metrics_update")]
    assert losses == [2.0, 0.25]


def test_an_iteration_can_set_its_own_sizes(log, clock):
    training = log.training
    training.configure(**CONFIG)
    training.on_train_start()
    varying = training.on_training_single_iteration_start()
    clock.advance(1.0)
    varying.set(batch_size=10, tokens=7)
    training.on_training_single_iteration_end()
    with training.training_iteration(batch_size=6):
        clock.advance(1.0)
    with training.training_iteration() as span:
        clock.advance(1.0)
        span.set(batch_size="many")

    [recorded] = events(log, "training_metrics_update")
    assert recorded["num_train_samples"] == 10 + 6 + 4
    assert recorded["train_tokens"] == 7 + 6 * 8 + 4 * 8
    assert log.guard.total == 1


def test_iterations_that_are_only_added_up_count_with_their_own_sizes(log, clock):
    training = log.training
    training.on_train_start()
    for step in range(300):
        training.on_training_single_iteration_start().set(batch_size=3, tokens=5)
        clock.advance(1.0)
        log.log_step(step, train_loss=1.0)
        training.on_training_single_iteration_end()
    training.on_train_end()

    recorded = events(log, "training_metrics_update")[-1]
    assert (recorded["num_train_samples"], recorded["train_tokens"]) == (900, 1500)


def test_events_that_are_switched_off_are_not_written(log, clock):
    training = log.training
    training.configure(
        is_train_iterations_enabled=False,
        is_validation_iterations_enabled=False,
        is_test_iterations_enabled=False,
        is_save_checkpoint_enabled=False,
        is_log_throughput_enabled=False,
        flops_per_sample=1.0,
    )
    with training.training_loop():
        train(log, clock, [1.0])
        with training.validation_loop(), training.checkpoint_save(1):
            pass
        with training.testing_loop():
            pass

    names = {event["name"] for event in records_of(log, "span_event")}
    assert names == {"update_training_telemetry_config"}
    assert {span["name"] for span in spans(log)} == {
        *("training_loop", "training_iteration", "validation_loop", "checkpoint_save_sync", "testing_loop")
    }


def test_of_a_second_loop_nothing_is_counted_twice(log, clock):
    log.training.configure(**CONFIG)
    for start in (0, 3):
        with log.training.training_loop(train_iterations_start=start):
            train(log, clock, [1.0, 2.0, 3.0])
    with log.training.checkpoint_save(6):
        pass

    _, second = events(log, "training_metrics_update")
    assert second["num_iterations"] == 6, "of the whole job"
    assert second["total_iteration_time_sec"] == pytest.approx(12.0)
    assert second["current_iteration"] == 5
    assert second["completed_floating_point_operations_overall"] == pytest.approx(6 * 4 * 1e12)
    [safe] = events(log, "save_checkpoint_success")
    assert safe["productive_train_samples"] == 6 * 4
    assert safe["productive_train_tflops"] == pytest.approx(6 * 4)
    assert safe["productive_train_iterations_sec"] == pytest.approx(12.0)
