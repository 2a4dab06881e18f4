"""The CSV file of a chart has exactly the logged values that the chart shows."""

import csv
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from tests.runs.columns.test_series import build, columns_of
from toolkit.telemetry.runs.columns import export
from toolkit.telemetry.runs.columns.export import TooManyRows, curves_to_csv
from toolkit.telemetry.runs.store import CurveSegment, Series


def rows(data):
    return list(csv.DictReader(io.StringIO(data.decode())))


def series_of(values, window=None):
    return build(columns_of(values), window=window, buckets=2**40)


@tries
@given(
    values=st.lists(st.floats(), max_size=60),
    window=st.none() | st.tuples(st.integers(0, 40), st.integers(20, 60)),
)
def test_every_value_in_the_window_comes_back_bit_by_bit(values, window):
    found = rows(curves_to_csv([("r", series_of(values, window))], "step", window))

    low, high = (0, len(values)) if window is None else (min(window), max(window))
    inside = [(step, value) for step, value in enumerate(values) if low <= step <= high]
    assert [int(row["step"]) for row in found] == [step for step, _ in inside]
    for row, (_, value) in zip(found, inside, strict=True):
        assert float(row["value"]) == value or (math.isnan(value) and row["value"] == "nan")


def test_infinities_and_superseded_points_are_kept():
    old = CurveSegment(x=np.array([5.0]), y=np.array([-math.inf]), session=1)
    new = CurveSegment(x=np.array([4.5]), y=np.array([math.inf]), session=2)
    series = Series(metric="loss", axis="epoch", segments=(new,), superseded=(old,), total=1, drawn=1)

    assert curves_to_csv([("r,1", series)], "epoch", None).decode() == (
        'run,metric,session,epoch,value,superseded\n"r,1",loss,2,4.5,inf,0\n"r,1",loss,1,5,-inf,1\n'
    )


def test_more_points_than_a_browser_is_sent_are_refused(monkeypatch):
    monkeypatch.setattr(export, "_MAX_ROWS", 3)

    with pytest.raises(TooManyRows, match="Zoom in"):
        curves_to_csv([("r", series_of([1.0] * 4))], "step", None)
