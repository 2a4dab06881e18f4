"""The heat map of the ranks: every rank is in it, however many there are."""

import numpy as np
import pytest

from dashboard.charts.heatmaps import MAX_ROWS, rank_heatmap_figure, ranks_per_row
from toolkit.telemetry.runs.rank_grid import RankGrid


def grid_of(mean, **more):
    mean = np.array(mean, dtype=np.float64)
    return RankGrid(metric="m", ranks=tuple(range(len(mean))), mean=mean, high=mean * 2, **more)


def test_the_slowest_ranks_come_first_and_say_how_slow_they_are():
    slowest = grid_of([[0.1 * (rank + 1), np.nan, 0.1 * (rank + 1)] for rank in range(8)]).slowest()

    assert [one.rank for one in slowest] == [7, 6, 5, 4, 3]
    assert slowest[0].typical == pytest.approx(0.8)
    assert slowest[0].ratio == pytest.approx(0.8 / 0.45)


def test_ranks_that_take_no_time_have_no_ratio():
    assert grid_of([[0.0], [0.0]]).slowest(1)[0].ratio is None


def test_a_cell_is_where_its_steps_are():
    found = rank_heatmap_figure(grid_of([[1.0, 2.0], [3.0, np.nan]], first_step=64.0, cell_steps=8.0))
    (heat,) = found.data

    assert heat.x.tolist() == [68.0, 76.0]
    assert heat.y == ("0", "1")
    np.testing.assert_array_equal(heat.z, [[1.0, 2.0], [3.0, np.nan]])
    np.testing.assert_array_equal(heat.customdata[1, 0], [1.0, 6.0])
    assert "NaN" not in found.to_json()


@pytest.mark.parametrize("ranks", [1, 24, 25, MAX_ROWS, MAX_ROWS + 1, 1024, 10_000])
def test_a_slow_rank_shows_in_its_row_however_many_ranks_there_are(ranks):
    mean = np.full((ranks, 5), 0.2)
    slow = ranks * 3 // 5
    mean[slow] = 0.4
    mean[0, 2:] = np.nan

    grid = grid_of(mean)
    (heat,) = rank_heatmap_figure(grid).data
    rows = heat.z
    row = slow // ranks_per_row(grid)

    assert len(rows) == len(heat.y) == -(-ranks // ranks_per_row(grid)) <= MAX_ROWS
    assert np.flatnonzero((rows > 0.3).any(axis=1)).tolist() == [row]
    assert set(heat.customdata[row, :, 0].tolist()) == {float(slow)}
    assert rank_heatmap_figure(grid).layout.height <= 600


def test_ranks_with_a_problem_are_marked_by_a_symbol_and_a_word():
    (heatmap,) = rank_heatmap_figure(grid_of([[0.1]] * 4), {2: "✕ died"}).data

    assert heatmap.y == ("0", "1", "2 ✕ died", "3")


def test_a_marked_rank_is_named_in_a_row_of_several():
    figure = rank_heatmap_figure(grid_of([[0.1]] * 600), {77: "… silent", 599: "⚠ NaN", 5000: "✕ died"})

    assert "75 to 77, 77 … silent" in figure.data[0].y
