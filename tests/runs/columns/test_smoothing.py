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


def test_a_spike_changes_only_its_surroundings_and_those_hardly():
    values = NOISE.copy()
    values[500] = 1e30
    x = np.arange(1000.0)

    with_spike, without = (smooth(x, one, 20.0, 1.0)[1] for one in (values, NOISE))

    np.testing.assert_array_equal(with_spike[:440], without[:440])
    np.testing.assert_array_equal(with_spike[560:], without[560:])
    assert np.abs(with_spike / without - 1).max() < 0.01


@pytest.mark.parametrize("count", [200, 1000, 30_000])
@pytest.mark.parametrize("width", [0.0025, 0.03, 0.2])
def test_a_spike_of_one_step_makes_no_hill(count, width):
    random = np.random.default_rng(count)
    values = 1 + np.exp(-np.arange(count) / count) + random.normal(0, 0.05, count)
    spiked = values.copy()
    spiked[random.choice(np.arange(3, count - 3), 3, replace=False)] *= 6

    before, after = (smoothed(one, width).smooth[0] for one in (values, spiked))

    # At the least width there is nothing left of a cell whose one value is the spike.
    assert len(after.x) >= len(before.x) - 3
    there = np.interp(after.x, before.x, before.y)
    assert np.abs(after.y / there - 1).mean() < 0.002
    if width >= 0.03:
        assert np.abs(after.y / there - 1).max() < 0.01


def test_a_spike_that_is_written_at_once_weighs_as_much_as_its_steps():
    # One step of 1,500 is six times too high. From there on every 20th step is logged, and each jump at once.
    random = np.random.default_rng(5)
    steps = np.unique(np.concatenate((np.arange(0, 40_000, 20), np.arange(1_507, 40_000, 1_500))))
    folded = np.diff(steps, prepend=-1).astype(float)
    usual = 1 + random.normal(0, 0.1, len(steps)) / np.sqrt(folded)
    spiked = np.where(steps % 1_500 == 7, 6.0, usual)

    before, after = (
        smoothed(one, steps=steps.astype(float), folded=folded).smooth[0] for one in (usual, spiked)
    )

    assert np.abs(after.y / np.interp(after.x, before.x, before.y) - 1).max() < 0.01


@tries
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["normal", "exponential", "lognormal"]))
def test_a_run_has_the_same_line_whether_it_logs_every_step_or_every_twentieth(seed, kind):
    random = np.random.default_rng(seed)
    noise = {
        "normal": lambda: random.normal(0, 1, 20_000),
        "exponential": lambda: random.exponential(1, 20_000),
        "lognormal": lambda: random.lognormal(0, 0.5, 20_000),
    }[kind]()
    x = np.arange(20_000.0)
    values = 20 * np.exp(-x / 8_000) + noise
    means = values.reshape(-1, 20).mean(axis=1)

    every = smoothed(values).smooth[0]
    folded = smoothed(means, steps=x.reshape(-1, 20).mean(axis=1), folded=np.full(len(means), 20)).smooth[0]

    apart = np.abs(every.y - np.interp(every.x, folded.x, folded.y)) / noise.std()
    assert apart.mean() < 0.02
    assert apart.max() < 0.1


def test_a_slope_and_a_step_keep_their_place_whatever_the_interval():
    # Logged every step, then every 50th, and a few records twice as often.
    x = np.unique(
        np.concatenate((np.arange(0, 2_000), np.arange(2_000, 20_000, 50), np.arange(9_000, 9_500, 25)))
    )
    x = x.astype(float)
    places, values = smooth(x, 3 * x - 5, 600.0, 50.0, np.diff(x, prepend=-1))
    np.testing.assert_allclose(values, 3 * places - 5, atol=1e-6)

    for noise in (0.0, 0.02):
        step = np.where(np.arange(4_001) < 2_000, 1.0, 2.0) + np.random.default_rng(3).normal(0, noise, 4_001)
        places, values = smooth(np.arange(4_001.0), step, 120.0, 10.0)
        middle = float(places[np.argmax(values >= 1.5)])
        assert abs(middle - 2_000) <= 15


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
