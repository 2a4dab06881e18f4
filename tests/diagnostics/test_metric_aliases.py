from __future__ import annotations

import math

import pytest

from toolkit.telemetry.diagnostics import metric_aliases
from toolkit.telemetry.diagnostics.metric_aliases import Row, name_of, signal_of


def _row(last_step=0, **record):
    row = Row()
    row.read(record, last_step)
    return row


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("train_loss", metric_aliases.LOSS),
        ("loss", metric_aliases.LOSS),
        ("eval_loss", metric_aliases.VAL_LOSS),
        ("eval/loss", metric_aliases.VAL_LOSS),
        ("grad_norm", metric_aliases.GRAD_NORM),
        ("learning_rate", metric_aliases.LR),
        ("sec_per_step", metric_aliases.STEP_TIME),
        ("tokens_per_sec", metric_aliases.RATE),
        ("gpu_util", metric_aliases.GPU_UTIL),
        ("cpu_mem_rss_mb", metric_aliases.RSS),
        ("grad_scale", metric_aliases.LOSS_SCALE),
    ],
)
def test_a_signal_is_known_by_the_names_that_writers_give_it(name, signal):
    row = _row(**{"event": "step", "mine": 1.0, name: 2.0})

    assert row.values == {signal: 2.0}
    assert name_of(signal, row.record) == name
    assert signal_of(name) == signal


def test_of_two_names_the_first_that_carries_a_number_counts():
    row = _row(event="step", loss=None, train_loss=2.0, training_loss=3.0)

    assert row.values == {metric_aliases.LOSS: 2.0}
    assert name_of(metric_aliases.LOSS, row.record) == "train_loss"


@pytest.mark.parametrize("name", ["grad_norm", "train/grad_norm"])
def test_of_a_norm_that_varied_between_two_records_the_largest_counts(name):
    row = _row(**{"event": "step", name: 2.0, f"{name}_min": 1.0, f"{name}_max": 1e9, f"{name}_mean": 5.0})

    assert row.values == {metric_aliases.GRAD_NORM: 1e9}
    assert name_of(metric_aliases.GRAD_NORM, row.record) == name
    assert len(row.values) == len(row.shape.fields)


def test_gpu_memory_in_gib_is_converted_to_mib():
    assert _row(event="system", gpu_mem_allocated=2.0).values == {metric_aliases.GPU_MEMORY: 2048.0}
    assert _row(event="system", gpu_mem_mib=2.0).values == {metric_aliases.GPU_MEMORY: 2.0}


@pytest.mark.parametrize("event", ["eval", "epoch"])
def test_the_training_loss_of_an_evaluation_or_epoch_is_not_the_loops(event):
    row = _row(event=event, train_loss=1.0, val_loss=2.0)

    assert row.values == {metric_aliases.VAL_LOSS: 2.0}


@pytest.mark.parametrize("step", [None, "7", True, math.nan, math.inf, 1e300, 10**400, [7]])
def test_a_record_without_a_step_belongs_to_the_last_one(step):
    assert _row(last_step=42, global_step=step).step == 42


@pytest.mark.parametrize(("step", "read"), [(7, 7), (7.0, 7), (0, 0), (-3, -3)])
def test_a_step_is_a_whole_number(step, read):
    assert _row(last_step=42, global_step=step).step == read


@pytest.mark.parametrize(
    ("record", "time"),
    [
        ({"time": 5.0, "elapsed": 1.0}, 5.0),
        ({"time": 5}, 5.0),
        ({"time": "noon", "elapsed": 1.5}, 1.5),
        ({"elapsed_s": 2}, 2.0),
        ({"time": 10**400}, None),
        ({}, None),
    ],
)
def test_the_time_is_the_first_clock_with_a_value(record, time):
    assert _row(**record).time == time
