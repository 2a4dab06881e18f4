from __future__ import annotations

import pytest

from toolkit.mirrors.usage.allow_list import RUN_END, RUN_PROGRESS, allowed
from toolkit.mirrors.usage.runtime_metrics import RuntimeMetrics

MIB, GIB = 1024**2, 1024**3


def metrics_of(*records, is_resumed=False):
    metrics = RuntimeMetrics(is_resumed=is_resumed)
    for elapsed, event, fields in records:
        metrics.take({"event": event, "elapsed": elapsed, **fields})
    return metrics


def totals_of(*records, end=None, **options):
    """Return what is sent of the totals, after the allow-list."""
    return allowed(RUN_END, metrics_of(*records, **options).totals(end or {}))


def steps(*numbers, start=1.0):
    return [
        (start + i, "step", {"global_step": number, "train_loss": 0.5}) for i, number in enumerate(numbers)
    ]


# ------------------------------------------------------------ what is not known


def test_what_is_not_known_is_absent_and_never_zero():
    assert totals_of((5.0, "start", {})) == {"total_time_seconds": 5.0}
    assert allowed(RUN_PROGRESS, metrics_of((5.0, "start", {})).progress()) == {
        "elapsed_seconds": 5.0,
        "seconds_since_last_report": 5.0,
    }


def test_a_step_with_only_a_number_adds_nothing_else():
    sent = allowed(RUN_PROGRESS, metrics_of((10.0, "step", {"global_step": 3})).progress())

    assert sent == {
        "step": 3,
        "steps_per_second": 0.1,
        "elapsed_seconds": 10.0,
        "seconds_since_last_report": 10.0,
    }


def test_a_loss_that_is_no_number_is_absent():
    record = {"global_step": 3, "train_loss": None, "non_finite": {"train_loss": "NaN"}, "lr": 1e-4}
    sent = allowed(RUN_PROGRESS, metrics_of((1.0, "step", record)).progress())

    assert "train_loss" not in sent
    assert sent["learning_rate"] == 1e-4


# ------------------------------------------------------------ steps


def test_the_figures_are_those_of_the_last_step_whatever_came_after_it():
    last = {"global_step": 7, "train_loss": 0.25, "lr": 1e-4, "grad_norm": 1.5, "epoch": 0.7}
    sent = totals_of(
        (1.0, "step", last),
        (2.0, "eval", {"global_step": 7, "train_loss": 9.0, "val_loss": 9.0, "epoch": 9}),
        (3.0, "train_summary", {"global_step": 7, "train_loss": 0.0, "summary": {"train_runtime": 1.0}}),
        (4.0, "system", {"global_step": 7, "train_loss": 8.0}),
    )

    assert (sent["train_loss"], sent["learning_rate"], sent["grad_norm"]) == (0.25, 1e-4, 1.5)
    assert (sent["step"], sent["epoch"], sent["total_steps"]) == (7, 0.7, 1)


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (steps(1, 2, 3), 3),
        (steps(10, 20, 30), 21),
        ([(1.0, "step", {"global_step": 10, "steps_folded": 9}), *steps(20, start=2.0)], 20),
        (steps(5, 5, 5), 1),
        # A loop that went back after a reload trains those steps again.
        (steps(8, 9, 5, 6), 4),
        (steps(1000, 1001), 2),
        ([(1.0, "step", {"global_step": "x"}), (1.0, "step", {"global_step": True})], None),
    ],
)
def test_steps_are_counted_as_they_were_trained_in_this_session(records, count):
    assert totals_of(*records).get("total_steps") == count


def test_steps_behind_the_last_record_are_counted_by_the_end():
    sent = totals_of(*steps(1, 2), end={"global_step": 9, "seconds": 30.0})

    assert (sent["total_steps"], sent["step"], sent["steps_per_second"]) == (9, 9, 0.3)


def test_the_pace_of_the_whole_is_all_steps_over_all_time():
    sent = totals_of(*steps(*range(1, 101)), end={"seconds": 400.0})

    assert sent["steps_per_second"] == 0.25
    assert sent["total_time_seconds"] == 400.0


def test_the_pace_of_a_report_is_that_since_the_last_one():
    metrics = metrics_of(*steps(1, 2))
    metrics.progress()
    for record in steps(3, 4, 5, 6, start=10.0):
        metrics.take({"event": "step", "elapsed": record[0], **record[2]})
    progress = metrics.progress()

    assert progress["seconds_since_last_report"] == 11.0
    assert progress["steps_per_second"] == pytest.approx(4 / 11)


def test_how_far_it_is_needs_a_goal():
    assert "progress" not in totals_of(*steps(5))
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(5))["progress"] == 0.5
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(50))["progress"] == 1.0
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(0))["progress"] == 0.1
    assert totals_of((0.0, "start", {"max_steps": 10}), *steps(0, 9))["progress"] == 1.0


# ------------------------------------------------------------ epochs


def test_epochs_are_timed_from_the_start_of_the_training_and_from_one_another():
    sent = totals_of(
        (1.0, "start", {}),
        (4.0, "step", {"global_step": 1}),
        (11.0, "epoch", {"epoch": 0}),
        (31.0, "epoch", {"epoch": 1}),
    )

    assert sent["epoch_times"] == {"epoch_0_seconds": 10.0, "epoch_1_seconds": 20.0}
    assert sent["average_epoch_time_seconds"] == 15.0
    assert sent["epochs_completed"] == 2


def test_epoch_times_that_the_trainer_reports_are_used():
    sent = totals_of((1.0, "start", {}), (11.0, "epoch", {"epoch": 1, "seconds": 7.5}))

    assert sent["epoch_times"] == {"epoch_1_seconds": 7.5}


def test_metrics_of_one_epoch_in_two_records_are_one_epoch():
    sent = totals_of(
        (0.0, "start", {}), (5.0, "epoch", {"epoch": 1}), (9.0, "epoch", {"epoch": 1, "val_loss": 1.0})
    )

    assert (sent["epochs_completed"], sent["average_epoch_time_seconds"]) == (1, 5.0)


@pytest.mark.parametrize(
    ("is_resumed", "start"), [(True, {}), (False, {"resumed_from_step": 500})], ids=["session", "trainer"]
)
def test_the_rest_of_an_epoch_that_began_before_is_not_taken_for_a_whole_one(is_resumed, start):
    sent = totals_of(
        (1.0, "start", start),
        (3.0, "epoch", {"epoch": 4}),
        (13.0, "epoch", {"epoch": 5}),
        is_resumed=is_resumed,
    )

    assert sent["epoch_times"] == {"epoch_5_seconds": 10.0}
    assert (sent["epochs_completed"], sent["average_epoch_time_seconds"]) == (2, 10.0)


def test_of_very_many_epochs_the_first_are_listed_and_all_are_averaged():
    epochs = [(float(i), "epoch", {"epoch": i, "seconds": 2.0 if i < 100 else 4.0}) for i in range(200)]
    sent = totals_of(*epochs)

    assert len(sent["epoch_times"]) == 100
    assert sent["average_epoch_time_seconds"] == 3.0
    assert sent["epochs_completed"] == 200


# ------------------------------------------------------------ memory


def test_peaks_are_the_highest_that_any_record_knows():
    sent = totals_of(
        (1.0, "step", {"global_step": 1, "cpu_mem_rss_mb": 100.0, "gpu_mem_allocated": 2.0}),
        (2.0, "system", {"cpu_mem_rss_mb": 300.0, "gpu_mem_allocated": 1.0, "gpu_mem_peak": 7.5}),
        (3.0, "step", {"global_step": 2, "cpu_mem_rss_mb": 200.0, "gpu_mem_allocated": 1.0}),
    )

    assert sent["peak_cpu_memory_bytes"] == 300 * MIB
    assert sent["peak_gpu_memory_bytes"] == 7.5 * GIB
    assert "gpu_memory" not in sent


def test_the_counters_at_the_end_reports_a_peak_between_two_samples():
    end = {"cpu_mem_peak_mb": 900.0, "gpu/0/mem_peak_gb": 12.0, "gpu/1/mem_peak_gb": 20.0}
    sent = totals_of(
        (1.0, "system", {"cpu_mem_rss_mb": 300.0, "gpu/0/mem_allocated_gb": 3.0, "gpu/0/mem_used_gb": 79.0}),
        (2.0, "end", end),
        end=end,
    )

    assert sent["peak_cpu_memory_bytes"] == 900 * MIB
    assert sent["peak_gpu_memory_bytes"] == 20 * GIB
    assert sent["gpu_memory"] == {"gpu_0_peak_memory_bytes": 12 * GIB, "gpu_1_peak_memory_bytes": 20 * GIB}


def test_a_peak_that_was_reset_in_between_is_remembered():
    sent = totals_of((1.0, "system", {"gpu_mem_peak": 30.0}), (9.0, "end", {"gpu/0/mem_peak_gb": 4.0}))

    assert sent["peak_gpu_memory_bytes"] == 30 * GIB


@pytest.mark.parametrize("odd", ["much", None, -1.0, True, float("inf"), [1]])
def test_memory_that_is_no_number_is_not_known(odd):
    sent = totals_of((1.0, "system", {"cpu_mem_rss_mb": odd, "gpu_mem_peak": odd, "gpu/0/mem_peak_gb": odd}))

    assert not any("memory" in name for name in sent)
