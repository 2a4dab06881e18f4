from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.telemetry.reports.document import Chart, Curve, Line, Point
from toolkit.telemetry.reports.svg import chart_html, look, x_axis, y_axis

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


def chart(**more):
    points = tuple(Point(float(x), float(y)) for x, y in ((1, 1), (10, 10), (100, 0)))
    line = Line(
        label="a", curve=Curve(metric="m", parts=(points,)), colour="#12ab34", dash="dot", band=((1, 0.5, 2),)
    )
    return chart_html(Chart(title="m", lines=[line], **more), [0])


def test_a_line_has_the_colour_the_dashes_and_the_band_that_it_has_on_the_page():
    drawn = chart()

    assert '<path class="line" style="color:#12ab34;stroke-dasharray:2 4"' in drawn
    assert '<path class="spread" style="color:#12ab34;" d="M' in drawn
    assert look("key", "red;background:url(x)") == 'class="key c0"', "a colour is a colour"
    assert look("line", 14) == 'class="line c2 d1"'


def test_axes_are_those_of_the_page():
    both = chart(log_x=True, log_y=True, window=(1.0, 50.0))

    assert 'data-log="1" data-logx="1"' in both
    assert both.count("L") == chart(log_x=True).count("L") - 1, "0 has no place on a logarithmic axis"
