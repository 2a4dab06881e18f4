from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.diagnostics.robust import Window, start_of_streak, trend

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


def test_a_trend_is_the_middle_slope_and_the_sign_of_most_pairs():
    line = [2.0 * place for place in range(10)]

    assert trend(line)[0] == trend([*line[:5], 99.0, *line[6:]])[0] == 2.0
    assert trend(line)[1] == -trend(line[::-1])[1] > 3.0
    assert trend([1.0] * 10) == trend([1.0]) == (0.0, 0.0)


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
