from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.diagnostics.robust import Trend, Window, median, start_of_streak, trend

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
