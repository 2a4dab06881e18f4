"""A change is called one only beyond the noise."""

import numpy as np
import pytest

from toolkit.runs.statistics import trend_of


def test_noise_is_called_a_trend_in_few_of_a_hundred_cases():
    clear = [trend_of(np.random.default_rng(seed).normal(2.0, 0.3, 100)).is_clear for seed in range(200)]

    assert sum(clear) <= 8


@pytest.mark.parametrize("sign", [1, -1])
def test_a_slope_beyond_the_noise_is_found_with_its_size(sign):
    noise = np.random.default_rng(1).normal(0, 0.05, 100)

    trend = trend_of(3.0 + sign * np.linspace(0, 1, 100) + noise)

    assert trend.is_clear
    assert trend.change == pytest.approx(sign, abs=0.1)
    assert trend.mean == pytest.approx(3.0 + sign / 2, abs=0.05)


def test_constants_and_odd_values_have_none():
    assert not trend_of(np.full(100, 1e-4)).is_clear
    assert not trend_of(np.zeros(100)).is_clear
    assert not trend_of(np.full(50, 1e308)).is_clear
    assert trend_of(np.append(np.full(90, np.nan), np.ones(10))) is None
    assert trend_of(np.empty(0)) is None
