"""The heat map of many GPUs: each in its row, each sample in its cell."""

import numpy as np
import pytest

from dashboard.charts.heatmaps import gpu_heatmap_figure
from dashboard.charts.packing import x_values
from toolkit.telemetry.runs.store import CurveSegment, Series


def series_of(x, y):
    segment = CurveSegment(x=np.array(x, dtype=np.float64), y=np.array(y, dtype=np.float64), session=1)
    return Series(metric="m", axis="time", segments=(segment,), total=len(x))


def figure_of(utilization):
    return gpu_heatmap_figure(utilization, revision="r")


def on_the_clock(*times):
    return x_values(np.array(times)).tolist()


def rows_of(figure):
    (heat,) = figure.data
    return heat.x.tolist(), heat.z


def test_a_cell_is_the_mean_of_its_samples():
    figure = figure_of({0: series_of(range(8), [100, 50] * 4), 7: series_of([0, 1, 6], [0, 10, np.nan])})
    x, rows = rows_of(figure)

    assert x == on_the_clock(1.0, 3.0, 5.0, 7.0)
    assert figure.data[0].y == ("0", "7")
    np.testing.assert_array_equal(rows, [[75, 75, 75, 75], [5, np.nan, np.nan, np.nan]])
    assert "NaN" not in figure.to_json()


@pytest.mark.parametrize("samples", [1, 2, 95, 96, 97, 5000])
def test_regular_samples_leave_no_gap_however_many_there_are(samples):
    for spacing in (1.0, 4.9, 5.1, 64.0):
        x, rows = rows_of(figure_of({0: series_of(1.7e9 + np.arange(samples) * spacing, [80.0] * samples)}))

        assert len(x) <= 96
        assert set(rows[0].tolist()) == {80.0}


def test_without_a_sample_there_is_no_chart():
    assert figure_of({0: series_of([], []), 1: series_of([1, 2], [np.nan, np.inf])}) is None
