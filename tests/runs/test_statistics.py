"""A change is called one only beyond the noise."""

import numpy as np
import pytest

from toolkit.telemetry.runs.statistics import trend_of


def test_noise_is_called_a_trend_in_few_of_a_hundred_cases():
    clear = [trend_of(np.random.default_rng(seed).normal(2.0, 0.3, 100)).is_clear for seed in range(200)]

    assert sum(clear) <= 8


@pytest.mark.parametrize("sign", [1, -1])
def test_a_slope_beyond_the_noise_is_found_with_the_difference_of_its_halves(sign):
    values = 3.0 + sign * np.linspace(0, 1, 100) + np.random.default_rng(1).normal(0, 0.05, 100)

    trend = trend_of(values)

    assert trend.is_clear
    assert trend.records == 50
    assert trend.mean == pytest.approx(values[50:].mean())
    assert trend.change == pytest.approx(values[50:].mean() - values[:50].mean())


def test_a_few_extreme_values_do_not_make_a_change_larger_than_the_values():
    values = np.linspace(1.0, 2.0, 100)
    values[90:] *= 4

    trend = trend_of(values)

    assert 0 < trend.change < trend.mean
