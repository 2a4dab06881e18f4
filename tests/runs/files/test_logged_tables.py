"""Tables and histograms of our records and of other tools."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dashboard.charts.heatmaps import histogram_figure
from toolkit.telemetry.runs.files.logged_tables import (
    MAX_ROWS,
    histogram_map,
    read_csv,
)


def test_numbers_of_a_csv_file_are_numbers_and_the_rest_is_text():
    found = read_csv(b'prompt,clip,odd\r\na cat,0.31,1\r\n"a, dog",0.28,x\r\n,,\r\n')

    assert found.columns == {
        "prompt": ["a cat", "a, dog", ""],
        "clip": [0.31, 0.28, None],
        "odd": ["1", "x", ""],
    }
    assert found.total == 3


def test_rows_of_any_length_and_columns_of_one_name_are_kept():
    found = read_csv(b"a,a,\n1\n1,2,3,4\n")

    assert list(found.columns) == ["a", "a ", "column 3"]
    assert found.columns["a "] == [None, 2.0]


def test_a_long_table_is_cut_and_says_how_long_it_is():
    found = read_csv(b"a\n" + b"1\n" * (MAX_ROWS + 7))

    assert (len(found.columns["a"]), found.total) == (MAX_ROWS, MAX_ROWS + 7)


def histogram(step, counts, edges, **more):
    return {"event": "histogram", "name": "w", "global_step": step, "values": counts, "bins": edges, **more}


def test_histograms_of_different_bins_share_the_bins_of_the_map():
    found = histogram_map(
        [histogram(20, [4], [-1.0, 1.0], not_finite=3), histogram(10, [1, 1, 0], [0.0, 1.0, 2.0, 9.0])]
    )

    assert found.steps.tolist() == [10, 20]
    assert (found.edges[0], found.edges[-1]) == (-1.0, 2.0), "the empty bin does not count"
    assert found.share.sum(axis=0) == pytest.approx([1.0, 1.0])
    below_zero = found.share[: len(found.share) // 3].sum(axis=0)
    assert below_zero == pytest.approx([0.0, 0.5])
    assert (found.logged, found.not_finite) == (2, 3)


def test_the_largest_edges_of_tensorboard_do_not_count():
    content = {
        "min": -2.0,
        "max": 3.0,
        "edges": [-2.5, 0.0, 4.0, 1.7976931348623157e308],
        "counts": [0.0, 2.0, 2.0, 0.0],
    }

    found = histogram_map([{"event": "histogram", "name": "w", "global_step": 1, "content": content}])

    assert (found.edges[0], found.edges[-1]) == (-2.5, 3.0)


@pytest.mark.parametrize(
    ("counts", "edges"),
    [
        ([1], [0.0]),
        ([1, 2], [0.0, 1.0, 2.0, 3.0]),
        ([], []),
        ([0], [0.0, 1.0]),
        ([-1], [0.0, 1.0]),
        ([1], [1.0, 0.0]),
        ([1], [math.nan, 1.0]),
        (["1"], [0.0, 1.0]),
        ([True], [0.0, 1.0]),
        ([10**400], [0.0, 1.0]),
        (None, None),
        ([1] * 5_000, list(range(5_001))),
    ],
)
def test_what_is_no_histogram_is_left_out(counts, edges):
    readable = histogram(2, [1], [0.0, 1.0])

    if counts == [1] and edges == [0.0]:
        # Only the upper edge: all values are at that place.
        assert histogram_map([histogram(1, counts, edges)]) is not None
        return
    assert histogram_map([histogram(1, counts, edges)]) is None
    assert histogram_map([histogram(1, counts, edges), readable]).logged == 1


def test_the_heat_map_has_one_edge_more_than_columns_and_rows():
    found = histogram_map([histogram(step, [1, 3], [0.0, 1.0, 2.0]) for step in (40, 20, 10)])

    [trace] = histogram_figure(found).data

    assert trace.x.tolist() == [5.0, 15.0, 30.0, 50.0]
    assert len(trace["y"]) == len(found.share) + 1
    assert trace.z.shape == (len(found.share), 3)
    one = histogram_map([histogram(7, [1], [0.0, 1.0])])
    assert histogram_figure(one).data[0].x.tolist() == [6.5, 7.5]
    assert np.isfinite(one.share).all()
