"""Iterations added up: any way of cutting them into windows gives the same totals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.telemetry.logger.training.iteration_window import IterationSizes, IterationWindow

# However long an example takes on a machine that pauses.
tries = settings(deadline=None)

SIZES = IterationSizes(batch=4, tokens_per_sample=10, flops_per_sample=3.0)

iterations = st.lists(
    st.tuples(
        st.floats(min_value=1e-6, max_value=100.0),
        st.none() | st.integers(min_value=1, max_value=100),
        st.none() | st.integers(min_value=0, max_value=10_000),
    ),
    max_size=40,
)


def counted(iterations, sizes=SIZES):
    window = IterationWindow()
    for seconds, batch, tokens in iterations:
        if batch is None and tokens is None:
            window.add_alike([seconds], sizes)
        else:
            window.add_other(seconds, sizes, batch, tokens)
    return window


def figures(window):
    return {
        name: pytest.approx(getattr(window, name))
        for name in (
            *("count", "seconds", "shortest", "longest", "samples", "tokens", "flops"),
            *("best_rate", "worst_rate"),
        )
    }


@tries
@given(iterations, st.integers(min_value=0, max_value=40))
def test_two_windows_together_are_the_whole(iterations, cut):
    first, second = counted(iterations[:cut]), counted(iterations[cut:])
    first.merge(second)

    assert figures(first) == figures(counted(iterations))


@tries
@given(iterations)
def test_sizes_that_become_known_later_come_to_the_same_sums(iterations):
    late = counted(iterations, IterationSizes())
    late.settle(SIZES)
    known = counted(iterations)

    assert (late.known_samples, late.known_tokens) == (known.known_samples, known.known_tokens)
    assert late.flops == pytest.approx(known.flops)
    assert late.count == known.count == len(iterations)


def test_iterations_alike_are_counted_as_if_one_by_one():
    together, one_by_one = IterationWindow(), IterationWindow()
    together.add_alike([1.0, 3.0, 2.0], SIZES)
    for seconds in (1.0, 3.0, 2.0):
        one_by_one.add_other(seconds, SIZES, 4, 40)

    assert figures(together) == figures(one_by_one)
    assert (together.best_rate, together.worst_rate) == (12.0, 4.0)


def test_the_fastest_iteration_is_the_one_of_most_operations_a_second_not_the_shortest():
    window = IterationWindow()
    window.add_other(1.0, SIZES, 1, None)
    window.add_other(2.0, SIZES, 100, None)

    assert window.best_rate == 150.0
    assert window.worst_rate == 3.0


def test_a_sum_over_some_of_the_iterations_is_not_taken_for_one_over_all():
    window = IterationWindow()
    window.add_other(1.0, IterationSizes(tokens_per_sample=2), 4, None)
    assert (window.known_samples, window.known_tokens, window.known_flops) == (4, 8, None)

    window.add_alike([1.0], IterationSizes())
    assert (window.known_samples, window.known_tokens, window.known_flops) == (None, None, None)

    window.settle(IterationSizes(batch=4))
    assert (window.known_samples, window.known_tokens, window.known_flops) == (8, None, None)
