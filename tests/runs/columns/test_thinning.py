"""Whatever is left out of a drawn curve, it is no extreme, no end, and nothing that is no number."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from tests.runs.columns.test_series import curves
from toolkit.telemetry.runs.columns.thinning import bucket_size, runs_of, select


def buckets_of(count, start, size):
    """Yield the positions of each bucket, which begin at multiples of `size` of the whole curve."""
    by_bucket = {}
    for position in range(count):
        by_bucket.setdefault((start + position) // size, []).append(position)
    return by_bucket.values()


@tries
@given(values=curves, start=st.integers(0, 70), power=st.integers(0, 6))
def test_every_bucket_keeps_its_ends_and_its_extremes(values, start, power):
    size = 2**power

    chosen = select(values, start, size)

    assert (np.diff(chosen) > 0).all()
    drawn = set(chosen.tolist())
    for positions in buckets_of(len(values), start, size):
        part = values[positions]
        finite = part[np.isfinite(part)]
        kept = [position for position in positions if position in drawn]
        assert positions[0] in drawn
        assert positions[-1] in drawn
        assert len(kept) <= 4
        if len(finite):
            assert finite.min() == np.nanmin(values[kept][np.isfinite(values[kept])])
            assert finite.max() == np.nanmax(values[kept][np.isfinite(values[kept])])
        if len(positions) <= 4:
            assert kept == positions


@tries
@given(values=curves, start=st.integers(0, 70), power=st.integers(0, 5), cut=st.integers(0, 8))
def test_buckets_do_not_depend_on_what_follows_them(values, start, power, cut):
    size = 2**power
    at = min(len(values), max(0, cut * size - start))
    if at < len(values) and (start + at) % size:
        at = 0

    first, second = select(values[:at], start, size), select(values[at:], start + at, size) + at

    assert np.concatenate((first, second)).tolist() == select(values, start, size).tolist()


@tries
@given(points=st.integers(0, 10_000_000), buckets=st.integers(1, 2000))
def test_there_are_no_more_buckets_than_asked_for_and_at_least_half_of_them(points, buckets):
    size = bucket_size(points, buckets)

    assert size & (size - 1) == 0
    assert points <= size * buckets
    assert size == 1 or points > size // 2 * buckets


@tries
@given(mask=st.lists(st.booleans(), max_size=60))
def test_runs_cover_what_is_true_and_nothing_else(mask):
    runs = runs_of(np.array(mask, dtype=bool))

    covered = [position for first, last in runs for position in range(first, last + 1)]
    assert covered == [position for position, true in enumerate(mask) if true]
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(runs))
