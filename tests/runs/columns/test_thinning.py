"""How many buckets a curve has, and which consecutive points are not finite."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from toolkit.telemetry.runs.columns.thinning import level_for, runs_of


@tries
@given(points=st.lists(st.integers(0, 10_000_000), max_size=4), buckets=st.integers(4, 2000))
def test_there_are_no_more_buckets_than_asked_for_and_at_least_a_quarter_of_them(points, buckets):
    level = level_for(points, buckets)

    assert sum(-(-count // 4**level) for count in points) <= buckets
    assert not level or sum(-(-count // 4 ** (level - 1)) for count in points) > buckets


@tries
@given(mask=st.lists(st.booleans(), max_size=60))
def test_runs_cover_what_is_true_and_nothing_else(mask):
    runs = runs_of(np.array(mask, dtype=bool))

    covered = [position for first, last in runs for position in range(first, last + 1)]
    assert covered == [position for position, true in enumerate(mask) if true]
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(runs))
