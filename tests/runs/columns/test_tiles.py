"""A curve in tiles has every extreme at every level, and a chart that only asks for what is new has the whole curve."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from tests.runs.columns.test_series import Row, columns_of, long_curve, numbers, parsed, resumed_runs
from toolkit.telemetry.runs.columns import tiles as tiles_module
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.curve_tiles import TILE, TileQuery

AXES = ("step", "time", "elapsed", "epoch", "progress", "metric:gpu")
NO_PLAN = (None, False)


class Queries(ColumnQueries):
    """Queries on columns that a test fills."""

    def __init__(self, columns=None):
        super().__init__()
        self._use_columns(columns or RunColumns())

    def add(self, rows):
        if rows:
            self._columns.add(parsed(rows))

    def ask(self, name="loss", axis="step", planned=NO_PLAN, **query):
        return self.tiles(name, axis, TileQuery(**query), planned)

    refresh = read_records = None


def rows_of(values, weights=None, *, session=1, first=0):
    """Return a step record for each value; a weight above 1 says how many steps were folded into it."""
    return [
        Row(
            session=session,
            kind="step",
            step=float(first + i),
            time=1000.0 + i,
            elapsed=float(i),
            epoch=math.nan,
            metrics={"loss": value}
            | ({"steps_folded": weights[i] - 1} if weights and weights[i] > 1 else {}),
        )
        for i, value in enumerate(values)
    ]


def tile_of(queries, level, number=0, piece=0):
    version = queries.ask(fit=1).version
    [block] = queries.ask(tiles=((piece, level, number),), version=version).blocks
    return block


# ---------------------------------------------------------------- levels


def expected(values, weights, level):
    """Return minimum, maximum, mean, weight and how many are not finite, of each bucket, value by value."""
    size = 4**level
    for start in range(0, len(values), size):
        pairs = list(zip(values[start : start + size], weights[start : start + size], strict=True))
        good = [(value, weight) for value, weight in pairs if math.isfinite(value)]
        total = sum(weight for _, weight in good)
        mean = math.fsum(value * (weight / total) for value, weight in good) if good else math.nan
        numbers_in = [value for value, _ in good] or [math.nan]
        yield min(numbers_in), max(numbers_in), mean, total, len(pairs) - len(good)


values_and_weights = st.builds(
    long_curve, st.integers(0, 10**6), st.integers(1, 700), st.sampled_from([0.0, 0.05, 0.7])
).flatmap(
    lambda values: st.tuples(
        st.just(values.tolist()),
        st.integers(1, 3).map(lambda most: [1 + (i * 7) % most for i in range(len(values))]),
    )
) | st.lists(numbers, min_size=1, max_size=40).map(lambda values: (values, [1] * len(values)))


@tries
@given(curve=values_and_weights, cuts=st.lists(st.integers(0, 700), max_size=3))
def test_every_level_is_that_of_the_points_however_they_came_in(curve, cuts):
    values, weights = curve
    rows = rows_of(values, weights)
    queries = Queries()
    for start, stop in pairwise(sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})):
        queries.add(rows[start:stop])
        queries.ask(fit=1)

    for level in range(1, 7):
        block = tile_of(queries, level)
        low, high, mean, weight, bad = zip(*expected(values, weights, level), strict=True)
        kind = block.values[0].dtype.type
        np.testing.assert_array_equal(block.values[0], np.array(low, kind))
        np.testing.assert_array_equal(block.values[1], np.array(high, kind))
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        np.testing.assert_allclose(block.values[2], mean, rtol=1e-6, atol=1e-6 * largest)
        assert block.weight.tolist() == list(weight)
        assert block.bad.tolist() == list(bad)
        assert block.x.tolist() == [float(i) for i in range(0, len(values), 4**level)]
    points = tile_of(queries, 0)
    np.testing.assert_array_equal(points.values[0], values[:TILE])
    assert points.weight.tolist() == weights[:TILE]
    assert points.values[0].dtype == np.float64


def test_a_spike_and_a_nan_are_in_every_level_of_a_long_curve_and_exact_in_the_last():
    values = np.random.default_rng(0).normal(1.0, 0.1, 300_000)
    values[123_456], values[200_001] = 1e6, math.nan
    queries = Queries(columns_of(values))
    whole = queries.ask()

    for level in range(1, 17):
        spike, gap = (tile_of(queries, level, at // 4**level // TILE) for at in (123_456, 200_001))
        assert spike.values[1][123_456 // 4**level % TILE] == 1e6
        assert gap.bad[200_001 // 4**level % TILE] == 1
    assert tile_of(queries, 0, 123_456 // TILE).values[0][123_456 % TILE] == 1e6
    assert (whole.high, [run.count for run in whole.non_finite]) == (1e6, [1])
    assert sum(len(block.x) for block in whole.blocks) <= 800
    assert whole.blocks[0].bad.sum() == 1


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([1e308, 1.7e308, -1e308, 1e308, 1.7e308], 8),
        ([1e-300, 2e-300, 3e-310, 0.0], 8),
        ([123456789.0, 123456789.5, 123456790.0], 8),
        ([2.0**53 + 2, 1.0, 2.0**53], 4),
        ([0.0, 0.0], 4),
        ([math.nan, math.inf], 4),
        ([0.5, 0.25, -3.0], 4),
    ],
)
def test_single_floats_are_used_only_where_they_draw_the_same_curve(values, size):
    block = tile_of(Queries(columns_of(values)), 1)

    assert block.values[0].itemsize == size
    low, high, mean = (one[0] for one in block.values)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        whole = finite[:4]
        np.testing.assert_allclose([low, high], [min(whole), max(whole)], rtol=1e-6)
        assert low <= mean <= high
        assert math.isfinite(mean)
    else:
        assert np.isnan([low, high, mean]).all()


def test_levels_that_were_not_used_lately_are_built_again(monkeypatch):
    monkeypatch.setattr(tiles_module, "_MOST_BYTES", 1)
    columns = columns_of(np.arange(3000.0))
    columns.metrics["other"] = columns.metrics["loss"]
    queries = Queries(columns)

    first = queries.ask(fit=100)
    queries.ask("other", fit=100)
    again = queries.ask(fit=100)

    assert again.version != first.version
    np.testing.assert_array_equal(first.blocks[0].values[0], again.blocks[0].values[0])
    assert queries.nbytes > 0


# ---------------------------------------------------------------- a chart that follows a run


class Chart:
    """What a browser keeps of one curve: it asks for what is new, and forgets all when the version changes."""

    def __init__(self, queries, name, axis):
        self.queries, self.name, self.axis = queries, name, axis
        self.version, self.points = "", []
        self.pieces = ()
        self.non_finite = ()
        self.whole_asked = 0

    def look(self):
        after = tuple(len(points) for points in self.points)
        found = self.queries.ask(self.name, self.axis, after=after, version=self.version)
        if found.version != self.version:
            self.whole_asked += 1
            self.version, self.points = found.version, []
            found = self.queries.ask(self.name, self.axis, after=(), version=self.version)
        self.pieces = found.pieces
        self.points += [[] for _ in range(len(found.pieces) - len(self.points))]
        for block in found.blocks:
            assert (block.level, block.first) == (0, len(self.points[block.piece]))
            self.points[block.piece] += zip(block.x.tolist(), block.values[0].tolist(), strict=True)
        if found.non_finite is not None:
            self.non_finite = found.non_finite
        assert [piece.points for piece in found.pieces] == [len(points) for points in self.points]


@tries
@given(rows=resumed_runs(), cuts=st.lists(st.integers(0, 100), max_size=4), axis=st.sampled_from(AXES))
def test_a_chart_that_only_asks_for_what_is_new_has_the_whole_curve(rows, cuts, axis):
    queries = Queries()
    chart = Chart(queries, "loss", axis)
    for start, stop in pairwise(sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})):
        queries.add(rows[start:stop])
        chart.look()

    fresh = Chart(Queries(), "loss", axis)
    fresh.queries.add(rows)
    fresh.look()

    for mine, right in zip(chart.points, fresh.points, strict=True):
        np.testing.assert_array_equal(mine, right)
    assert [(piece.session, piece.is_superseded) for piece in chart.pieces] == [
        (piece.session, piece.is_superseded) for piece in fresh.pieces
    ]
    if axis in ("step", "time"):
        assert chart.non_finite == fresh.non_finite
    if axis in ("step", "time", "elapsed", "epoch"):
        series = fresh.queries.series("loss", axis, None, 10_000)
        for is_superseded, segments in ((False, series.segments), (True, series.superseded)):
            mine = [
                points
                for points, piece in zip(chart.points, chart.pieces, strict=True)
                if piece.is_superseded == is_superseded
            ]
            for points, segment in zip(mine, segments, strict=True):
                np.testing.assert_array_equal([x for x, _ in points], segment.x)
                np.testing.assert_array_equal([y for _, y in points], segment.y)


def test_an_old_version_or_too_much_new_is_answered_with_the_whole_curve(monkeypatch):
    queries = Queries(columns_of(np.arange(5000.0)))
    version = queries.ask().version

    old = queries.ask(tiles=((0, 0, 0),), version="old")
    beyond = queries.ask(after=(6000,), version=version)
    nothing = queries.ask(tiles=((0, 0, 99), (7, 0, 0)), version=version)
    monkeypatch.setattr(tiles_module, "_MOST_NEW", 10)
    much = queries.ask(after=(100,), version=version)

    for found in (old, beyond, much):
        assert [(block.level, len(block.x)) for block in found.blocks] == [(2, 313)]
        assert found.non_finite == ()
    assert nothing.blocks == ()


def test_a_file_that_changes_its_session_all_the_time_is_shown_in_part_and_says_so(monkeypatch):
    monkeypatch.setattr(tiles_module, "_MOST_PIECES", 3)
    queries = Queries()
    for session in range(1, 6):
        queries.add(rows_of([1.0], session=session, first=session))

    found = queries.ask()

    assert [piece.session for piece in found.pieces] == [3, 4, 5]
    assert found.problem == "the session changes 5 times: the last 3 parts are shown"


# ---------------------------------------------------------------- axes
