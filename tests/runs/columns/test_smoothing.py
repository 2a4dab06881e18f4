"""Smoothing takes away noise and nothing else: no lag, no value from elsewhere, no metric that has none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from tests.runs.columns.test_series import columns_of
from toolkit.runs.columns.series import SeriesBuilder
from toolkit.runs.columns.smoothing import may_be_smoothed, smooth

NOISE = np.random.default_rng(0).normal(1.0, 0.1, 1000)


def smoothed(values, smoothing="auto", buckets=600, **more):
    return SeriesBuilder(columns_of(values, **more)).build("loss", "step", None, buckets, smoothing)


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
    assert smoothed(values, 0.1).smooth == ()


def test_auto_leaves_a_short_curve_alone_and_a_chosen_strength_does_not():
    assert smoothed(NOISE[:199]).smooth == ()
    assert smoothed(NOISE[:199], 0.05).smooth != ()
    assert smoothed(NOISE[:200]).smooth != ()
    assert smoothed(NOISE, 0.0).smooth == ()


@tries
@given(slope=st.floats(-100, 100), level=st.floats(-100, 100), width=st.floats(0.001, 0.5))
def test_a_straight_line_stays_where_it_is_up_to_its_ends(slope, level, width):
    x = np.arange(500.0)

    places, values = smooth(x, slope * x + level, width * 500, 1.0)

    np.testing.assert_allclose(values, slope * places + level, atol=1e-7)


def test_a_step_is_smoothed_evenly_on_both_sides():
    x = np.arange(1001.0)

    _, values = smooth(x, np.where(x < 500, 0.0, np.where(x > 500, 1.0, 0.5)), 50.0, 1.0)

    np.testing.assert_allclose(values + values[::-1], 1.0, atol=1e-12)
    assert set(values[:449].tolist()) == {0.0}
    assert set(values[552:].tolist()) == {1.0}


def test_a_spike_changes_only_its_surroundings():
    values = NOISE.copy()
    values[500] = 1e30
    x = np.arange(1000.0)

    with_spike, without = smooth(x, values, 20.0, 1.0)[1], smooth(x, NOISE, 20.0, 1.0)[1]

    np.testing.assert_array_equal(with_spike[:479], without[:479])
    np.testing.assert_array_equal(with_spike[521:], without[521:])


def test_the_strength_follows_the_visible_range_and_not_the_number_of_records():
    # The same training, logged every step and every tenth one.
    x = np.arange(20_000.0)
    noise = np.random.default_rng(1).normal(0, 0.2, len(x))
    truth = 2 + np.sin(x / 3000)
    every, tenth = smoothed(truth + noise), smoothed((truth + noise)[::10], steps=x[::10])

    for series in (every, tenth):
        places = np.concatenate([segment.x for segment in series.smooth])
        values = np.concatenate([segment.y for segment in series.smooth])
        assert np.abs(values - (2 + np.sin(places / 3000))).max() < 0.15
        assert np.abs(values - (2 + np.sin(places / 3000))).mean() < 0.03


def test_a_smoothed_curve_does_not_depend_on_how_the_logged_one_is_thinned():
    values = np.random.default_rng(2).normal(size=50_000)
    values[25_000] = 1e3
    fine, coarse = (smoothed(values, 0.02, buckets=buckets) for buckets in (800, 200))

    np.testing.assert_array_equal(fine.smooth[0].x, coarse.smooth[0].x)
    np.testing.assert_array_equal(fine.smooth[0].y, coarse.smooth[0].y)
    assert len(fine.segments[0].x) > len(coarse.segments[0].x)


def test_a_curve_that_goes_back_or_breaks_all_the_time_is_drawn_as_it_was_logged():
    back = np.concatenate((np.arange(500.0), np.arange(500.0)))
    assert smoothed(NOISE, 0.1, steps=back).smooth == ()
    broken = NOISE.copy()
    broken[::3] = np.nan
    assert smoothed(broken, 0.1).smooth == ()


def test_huge_numbers_are_smoothed_too():
    values = NOISE * 1e307

    result = smoothed(values, 0.1).smooth[0].y

    assert np.isfinite(result).all()
    assert result.max() <= values.max()
