from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.diagnostics.robust import LossAxis


def _after(*losses):
    axis = LossAxis()
    for loss in losses:
        axis.place(loss)
    return axis


@without_haste
@given(loss=st.floats(min_value=0.01, max_value=1e300), share=st.floats(min_value=0.01, max_value=10.0))
def test_a_rise_by_a_share_is_equally_far_at_every_positive_level(loss, share):
    axis = _after(2.0, 2.0, 2.0)

    distance = axis.place(loss * (1.0 + share)) - axis.place(loss)

    assert distance == pytest.approx(axis.gap(axis.place(loss), share), abs=1e-9)
    assert axis.value(axis.place(loss)) == pytest.approx(loss)


def test_the_first_loss_below_zero_makes_the_axis_plain_once_and_for_all():
    axis = _after(2.0, 2.0, 2.0)

    assert (axis.is_plain, axis.has_changed) == (False, False)
    assert axis.place(-1.0) == -1.0
    assert (axis.is_plain, axis.has_changed) == (True, True)
    assert axis.place(5.0) == 5.0
    assert (axis.is_plain, axis.has_changed) == (True, False)
    assert axis.value(5.0) == 5.0


def test_a_loss_that_begins_at_zero_has_no_ratios():
    axis = _after(0.0)

    assert axis.is_plain


def test_a_loss_that_falls_to_zero_stays_on_its_axis_at_the_bottom():
    axis = _after(2.0, 2.0, 2.0)

    assert axis.place(0.0) == axis.place(1e-30)
    assert axis.value(axis.place(0.0)) == pytest.approx(2e-4)
    assert not axis.is_plain


def test_the_spread_is_the_measure_of_a_loss_around_zero():
    axis = _after(*[(-1.0) ** place for place in range(40)])

    assert axis.gap(0.0, 1.0) > 1.0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_no_noise_is_assumed_to_be_smaller_than_a_hundredth(scale):
    axis = _after(scale, scale, scale)
    level = axis.place(scale)

    assert axis.value(level + axis.floor(level)) == pytest.approx(1.01 * scale)


def test_the_smallest_noise_is_never_nothing():
    assert _after(0.0, 0.0).floor(0.0) > 0.0


@pytest.mark.parametrize("loss", [5e-324, 1e-310, 1e308])
def test_no_positive_loss_is_too_small_or_too_large(loss):
    assert math.isfinite(LossAxis().place(loss))
    assert math.isfinite(_after(1.0, 1.0, 1.0).place(loss))
