from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.diagnostics.robust import Trend, Window, change_sigma, median, start_of_streak, trend

_numbers = st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=60)


@without_haste
@given(values=_numbers, size=st.integers(min_value=1, max_value=20))
def test_a_window_knows_the_median_and_the_ends_of_its_last_values(values, size):
    window = Window(size)
    for value in values:
        window.push(value)

    last = values[-size:]
    assert window.values() == last
    assert len(window) == len(last)
    assert window.median == statistics.median(last)
    assert (window.quantile(0.0), window.quantile(1.0)) == (min(last), max(last))


@without_haste
@given(values=_numbers)
def test_the_median_is_the_middle_and_leaves_the_values_as_they_were(values):
    before = list(values)

    assert median(values) == statistics.median(values)
    assert values == before


def test_a_cleared_window_starts_over():
    window = Window(3)
    for value in (1.0, 2.0, 3.0, 4.0):
        window.push(value)
    window.clear()
    window.push(9.0)

    assert (len(window), window.median, window.values()) == (1, 9.0, [9.0])


def test_spreads_are_those_of_the_noise_and_a_wild_value_does_not_move_them():
    dice = random.Random(1)
    values = [dice.gauss(5.0, 2.0) for _ in range(2000)]
    values[1000] = 1e12
    window = Window(2000)
    for value in values:
        window.push(value)

    assert window.sigma == pytest.approx(2.0, rel=0.1)
    assert change_sigma(values) == pytest.approx(2.0, rel=0.1)


def test_a_slow_trend_is_no_noise_from_one_value_to_the_next():
    dice = random.Random(1)
    values = [0.01 * place + dice.gauss(0.0, 1.0) for place in range(2000)]

    assert change_sigma(values) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_values_have_no_changes(values):
    assert change_sigma(values) == 0.0
    assert trend(values) == (0.0, 0.0)


def test_a_straight_line_has_its_slope_and_no_doubt():
    slope, z = trend([3.0 - 0.5 * place for place in range(30)])

    assert slope == pytest.approx(-0.5)
    assert z < -7.0


def test_a_constant_has_no_trend():
    assert trend([2.0] * 30) == (0.0, 0.0)


def test_z_is_about_normal_where_there_is_no_trend():
    dice = random.Random(1)
    zs = [trend([dice.random() for _ in range(20)])[1] for _ in range(400)]

    assert abs(statistics.mean(zs)) < 0.15
    assert statistics.stdev(zs) == pytest.approx(1.0, abs=0.15)


def _trend_pair_by_pair(values):
    slopes = [
        (values[late] - values[early]) / (late - early)
        for late in range(len(values))
        for early in range(late)
    ]
    signs = sum((later > earlier) - (later < earlier) for earlier, later in itertools.combinations(values, 2))
    count = len(values)
    return median(slopes), signs / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)


@without_haste
@given(
    values=st.lists(
        st.one_of(st.floats(min_value=-1e9, max_value=1e9), st.sampled_from((0.0, 5e-324, 1e-323, 1.0))),
        min_size=3,
        max_size=40,
    ),
    longest=st.integers(min_value=2, max_value=12),
)
def test_a_trend_of_values_that_come_and_leave_is_that_of_all_their_pairs(values, longest):
    known = Trend()

    for end in range(2, len(values) + 1):
        last = values[max(0, end - longest) : end]
        assert known.of(last) == trend(last) == _trend_pair_by_pair(last)


def test_one_wild_value_does_not_turn_a_trend():
    values = [float(place) for place in range(30)]
    values[29] = -1e9

    slope, z = trend(values)

    assert slope == pytest.approx(1.0, rel=0.1)
    assert z > 5.0


@pytest.mark.parametrize(
    ("flags", "first"),
    [
        ([True] * 5, 0),
        ([False, False, True, True, True], 2),
        ([True, False, False, False, True, True], 4),
        ([True, True, False, True, True, True, True], 0),
        ([False, False, False], 2),
    ],
)
def test_a_streak_begins_where_four_of_five_flags_are_set_from_there_on(flags, first):
    assert start_of_streak(flags) == first


def test_an_even_window_has_the_mean_of_its_two_middle_values():
    window = Window(4)
    for value in (1.0, 10.0, 2.0, 3.0):
        window.push(value)

    assert math.isclose(window.median, 2.5)
