from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from toolkit.reports.curve import CurveBuilder

VALUES = st.floats(allow_nan=True, allow_infinity=True)


def built(values, *, points=40, steps=None, pieces=1):
    builder = CurveBuilder("train_loss", points=points)
    steps = list(range(len(values))) if steps is None else steps
    size = max(1, math.ceil(len(values) / pieces))
    for at in range(0, len(values), size):
        builder.take(steps[at : at + size], values[at : at + size])
    return builder.curve()


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


@given(values=st.lists(VALUES, max_size=300), pieces=st.integers(1, 7))
def test_every_point_was_logged_and_no_extreme_is_lost(values, pieces):
    curve = built(values, pieces=pieces)

    points = [point for part in curve.parts for point in part]
    assert all(same(values[int(x)], y) for x, y in points)
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert curve.records == len(values)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert curve.low.y == min(finite)
        assert curve.high.y == max(finite)
        drawn = [y for _, y in points if math.isfinite(y)]
        assert (min(drawn), max(drawn)) == (min(finite), max(finite))
    assert curve.not_finite == len(values) - len(finite) == sum(one.values for one in curve.stretches)


def test_a_long_curve_is_thinned_and_its_spike_stays():
    values = [1.0] * 100_000
    values[77_777] = 9.0

    curve = built(values, points=2_000, pieces=13)

    assert curve.drawn <= 2_000
    assert (77_777, 9.0) in curve.parts[0]


def test_a_short_curve_keeps_every_point():
    values = [float(step % 7) for step in range(1_200)]

    curve = built(values, points=2_400)

    assert [point.y for point in curve.parts[0]] == values


def test_values_and_nan_by_turns_stay_bounded():
    values = [float(step) if step % 2 else math.nan for step in range(20_000)]

    curve = built(values, points=200)

    assert curve.drawn < 3_000
    assert curve.not_finite == 10_000 == sum(one.values for one in curve.stretches)


def test_a_step_that_goes_back_starts_a_new_part():
    curve = built([3.0, 2.0, 1.0, 2.5, 1.5], steps=[1, 2, 3, 2, 3])

    assert [[point.x for point in part] for part in curve.parts] == [[1, 2, 3], [2, 3]]
