"""A chart may smooth what is noisy, and nothing else."""

import math

import numpy as np
import pytest

from toolkit.telemetry.runs.columns.smoothing import may_be_smoothed

NOISE = np.random.default_rng(0).normal(1.0, 0.1, 1000)


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("val_loss", "step"),
        ("eval/accuracy", "step"),
        ("test_top1", "step"),
        ("accuracy", "eval"),
        ("loss", "epoch"),
        ("lr", "step"),
        ("train/learning_rate", "step"),
        ("Policy/Learning Rate", "step"),
        ("lr-AdamW", "step"),
        ("warmup_scale", "step"),
        ("epoch", "step"),
        ("train/global_step", "step"),
        ("steps_folded", "step"),
    ],
)
def test_evaluations_schedules_and_counters_are_never_smoothed(name, event):
    assert not may_be_smoothed(name, event, [NOISE])


@pytest.mark.parametrize(
    "name", ["train_loss", "grad_norm", "sec_per_step", "rewards/format", "devices_busy"]
)
def test_noisy_metrics_are(name):
    assert may_be_smoothed(name, "step", [NOISE])


@pytest.mark.parametrize(
    "values",
    [
        np.full(1000, 1e-4),
        np.zeros(1000),
        np.full(1000, 1e8),
        np.append(np.full(1000, 4.0), 3.0),
        1e-4 * (1 + 1e-12 * (np.arange(1000) % 2)),
        np.arange(1000.0),
        np.repeat([3.0, 2.0, 1.0], 400),
        np.cumsum(np.abs(NOISE)),
        0.5 * (1 + np.cos(np.linspace(0, math.pi, 300))),
        np.concatenate((np.linspace(0, 1, 50), 0.5 * (1 + np.cos(np.linspace(0, math.pi, 300))))),
        np.full(1000, np.nan),
        np.empty(0),
    ],
    ids=str,
)
def test_what_has_no_noise_is_never_smoothed_whatever_it_is_called(values):
    assert not may_be_smoothed("anything", "step", [values])
