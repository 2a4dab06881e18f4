from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.reports.svg import tick_text, x_axis, y_axis

FINITE = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


@given(values=FINITE, from_zero=st.booleans())
def test_every_value_is_inside_and_every_tick_is_a_number(values, from_zero):
    for axis in (y_axis(values, from_zero=from_zero), x_axis(values)):
        shares = [axis.share(value) for value in values]
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares), axis
        ticks = axis.ticks()
        assert len(ticks) <= 20
        assert all(math.isfinite(value) and -1e-9 <= axis.share(value) <= 1 + 1e-9 for value, _ in ticks)


def test_a_few_high_values_make_the_axis_logarithmic_and_a_constant_is_in_the_middle():
    assert y_axis([0.1] * 50 + [9.0]).log
    assert not y_axis([0.1, 0.2, 0.3]).log
    assert not y_axis([0.0] * 50 + [9.0]).log
    assert y_axis([1e-4]).share(1e-4) == pytest.approx(0.5)
    assert y_axis([1e8]).share(1e8) == pytest.approx(0.5)


def test_ticks_are_short():
    assert [tick_text(value) for value in (0, 0.05, 1e-4, 1500, 20_000, 1_500_000)] == [
        "0",
        "0.05",
        "1e-4",
        "1,500",
        "20k",
        "1.5M",
    ]
