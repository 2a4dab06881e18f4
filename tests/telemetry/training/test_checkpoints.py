"""What a checkpoint saves: the work up to its start, recorded once it has succeeded, in any order."""

from __future__ import annotations

import threading

import pytest

from tests.telemetry.logged import records_of
from tests.telemetry.training.event_reader import events, spans, train

CONFIG = {"global_batch_size": 4, "flops_per_sample": 1e12}


def test_a_checkpoint_that_failed_is_an_attempt_and_no_success(log):
    with pytest.raises(OSError, match="disk full"), log.training.checkpoint_save(1):
        raise OSError("disk full")
    with log.training.checkpoint_save(2):
        pass

    assert [recorded["current_iteration"] for recorded in events(log, "save_checkpoint_success")] == [2]
    attempts = [
        span["attributes"]["save_checkpoint_attempt_count"] for span in spans(log, "checkpoint_save_sync")
    ]
    assert attempts == [1, 2]


def test_checkpoints_that_are_saved_elsewhere_succeed_in_any_order_and_from_any_thread(log, clock, tmp_path):
    training = log.training
    training.configure(**CONFIG, save_checkpoint_strategy="async")
    (tmp_path / "b").write_bytes(b"12345")
    with training.application() as application, training.training_loop():
        train(log, clock, [1.0])
        training.on_save_checkpoint_start(1)
        training.on_save_checkpoint_end()
        train(log, clock, [1.0])
        with training.checkpoint_save(2, path=tmp_path / "b"):
            pass
        train(log, clock, [1.0] * 3)
        elsewhere = threading.Thread(target=_finish, args=(training, clock))
        elsewhere.start()
        elsewhere.join()

    later, earlier = events(log, "save_checkpoint_success")
    assert (later["current_iteration"], earlier["current_iteration"]) == (2, 1)
    assert (later["productive_train_iterations"], earlier["productive_train_iterations"]) == (2, 1)
    assert (later["productive_train_iterations_sec"], earlier["productive_train_iterations_sec"]) == (
        2.0,
        1.0,
    )
    assert (later["checkpoint_size"], earlier["checkpoint_size"]) == (5, 99)
    assert (later["save_checkpoint_success_count"], earlier["save_checkpoint_success_count"]) == (1, 2)
    where = {
        event["span_id"]
        for event in records_of(log, "span_event")
        if event["name"] == "save_checkpoint_success"
    }
    assert where == {application.id}
    [finalized] = spans(log, "checkpoint_save_finalization")
    assert finalized["duration"] == pytest.approx(4.0)
    assert finalized["attributes"] == {"current_iteration": 2}
    assert log.guard.counts == {}


def _finish(training, clock):
    with training.checkpoint_finalization(2):
        clock.advance(4.0)
    training.on_save_checkpoint_success(1, size=99)


def test_a_success_without_a_start_has_no_productive_work(log):
    log.training.on_save_checkpoint_success(5)

    [recorded] = events(log, "save_checkpoint_success")
    assert recorded["current_iteration"] == 5
    assert "productive_train_iterations" not in recorded
