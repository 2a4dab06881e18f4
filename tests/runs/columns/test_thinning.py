"""Whatever is left out of a drawn curve, it is no extreme, no end, and nothing that is no number."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from tests.runs.columns.test_series import curves
from toolkit.telemetry.runs.columns.thinning import first_lowest_highest_last, level_for, runs_of


@tries
@given(values=curves, level=st.integers(0, 3))
def test_every_bucket_keeps_its_ends_and_its_extremes(values, level):
    size = 4**level

    chosen = first_lowest_highest_last(values, level).tolist()

    assert chosen == sorted(set(chosen))
    for start in range(0, len(values), size):
        positions = range(start, min(start + size, len(values)))
        kept = [position for position in chosen if position in positions]
        assert {positions[0], positions[-1]} <= {*kept}
        part, drawn = (values[[*some]] for some in (positions, kept))
        finite, drawn = part[np.isfinite(part)], drawn[np.isfinite(drawn)]
        assert [*finite][:1] == [] or (finite.min(), finite.max()) == (drawn.min(), drawn.max())
        assert len(kept) <= 4
        if len(positions) <= 4:
            assert kept == [*positions]


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
