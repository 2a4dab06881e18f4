"""Iterations added up: any way of cutting them into windows gives the same totals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.telemetry.logger.training.sums import IterationSizes, Sums, Tally

SIZES = IterationSizes(batch=4, tokens_per_sample=10, flops_per_sample=3.0)

iterations = st.lists(
    st.tuples(
        st.floats(min_value=1e-6, max_value=100.0),
        st.none() | st.integers(min_value=1, max_value=100),
        st.none() | st.integers(min_value=0, max_value=10_000),
    ),
    max_size=40,
)


def counted(iterations, sizes=SIZES, windows_end_after=()):
    tally = Tally()
    for place, (seconds, batch, tokens) in enumerate(iterations):
        if place in windows_end_after:
            tally.end_window()
        tally.count(seconds, replace(sizes, batch=batch if batch is not None else sizes.batch, tokens=tokens))
    return tally


def figures(sums):
    return {name: pytest.approx(getattr(sums, name)) for name in Sums.__slots__}


# However long an example takes on a machine that pauses.
@settings(deadline=None)
@given(iterations, st.sets(st.integers(min_value=0, max_value=40)))
def test_windows_and_sizes_that_become_known_later_change_no_total(iterations, cuts):
    whole, cut = counted(iterations), counted(iterations, windows_end_after=cuts)
    late = counted(iterations, IterationSizes(), windows_end_after=cuts)
    so_far, _ = cut.so_far()
    for tally in (whole, cut, late):
        tally.settle(SIZES)
        tally.end_window()

    assert figures(so_far) == figures(cut.job) == figures(whole.job)
    known = ("known_samples", "known_tokens", "count")
    assert [getattr(late.job, name) for name in known] == [getattr(whole.job, name) for name in known]
    assert late.job.flops == pytest.approx(whole.job.flops)


def test_the_fastest_iteration_is_the_one_of_most_operations_a_second_not_the_shortest():
    sums = counted([(1.0, 1, None), (2.0, 100, None)]).so_far()[0]

    assert (sums.best_rate, sums.worst_rate) == (150.0, 3.0)


def test_a_sum_over_some_of_the_iterations_is_not_taken_for_one_over_all():
    def known():
        sums, _ = tally.so_far()
        return sums.known_samples, sums.known_tokens, sums.known_flops

    tally = Tally()
    tally.count(1.0, IterationSizes(batch=4, tokens_per_sample=2))
    assert known() == (4, 8, None)

    tally.count(1.0)
    assert known() == (None, None, None)

    tally.settle(IterationSizes(batch=4))
    assert known() == (8, None, None)
