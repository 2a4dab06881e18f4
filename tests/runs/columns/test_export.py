"""What is downloaded reads back as the same numbers, and a spreadsheet runs none of it."""

import io

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import any_text, tries
from toolkit.telemetry.runfolder.layout import is_safe_name
from toolkit.telemetry.runs.columns.export import download_name, metrics_to_csv, metrics_to_parquet, to_csv
from toolkit.telemetry.runs.store import Refused


def read_csv(data):
    # Before pandas 3 the quick parser is a digit off now and then, and the exact one is asked for by name.
    exact = {} if int(pd.__version__.split(".")[0]) >= 3 else {"float_precision": "round_trip"}
    return pd.read_csv(io.BytesIO(data), **exact)


def masked(values, there):
    return np.ma.array(values, mask=~there)


class Rows:
    """The tables of a store with one run."""

    def __init__(self, length, **metrics):
        self.columns = {
            name: np.arange(length, dtype=np.float64) for name in ("global_step", "time", "session")
        }
        self.metrics = metrics

    def table(self, key, metrics, *, rows=(None, None)):
        found = self.columns | {name: self.metrics[name] for name in metrics if name in self.metrics}
        return {name: column[slice(*rows)] for name, column in found.items()}


cells = st.lists(st.tuples(st.floats(), st.booleans()), max_size=8)


@tries
@given(cells=cells, width=st.integers(1, 3))
def test_pandas_reads_the_same_numbers_from_the_csv(cells, width):
    column = np.array([value for value, _ in cells], dtype=np.float64)
    there = np.array([present for _, present in cells], dtype=bool)
    columns = {f"c{i}": column for i in range(width)}

    frame = read_csv(to_csv({name: masked(values, there) for name, values in columns.items()}))

    assert list(frame.columns) == list(columns)
    for name in columns:
        np.testing.assert_array_equal(frame[name].to_numpy(dtype=np.float64), np.where(there, column, np.nan))


@tries
@given(cells=cells)
def test_parquet_keeps_absent_and_nan_apart(cells):
    column = np.array([value for value, _ in cells], dtype=np.float64)
    there = np.array([present for _, present in cells], dtype=bool)

    back = pq.read_table(
        io.BytesIO(metrics_to_parquet(Rows(len(column), a=masked(column, there)), "r", ["a"]))
    )

    assert back["a"].is_valid().to_pylist() == there.tolist()
    assert back["time"].null_count == 0
    np.testing.assert_array_equal(np.array(back["a"].to_pylist(), dtype=np.float64)[there], column[there])


def test_absent_nan_and_infinity_are_three_things_in_the_csv():
    column = np.array([1.0, np.nan, np.nan, np.inf, -np.inf, -1.5])
    there = np.array([True, True, False, True, True, True])

    data = to_csv({"step": np.arange(6.0), "loss": masked(column, there)})

    assert data == b"step,loss\n0,1\n1,nan\n2,\n3,inf\n4,-inf\n5,-1.5\n"
    alone = to_csv({"loss": masked([1.0, 2.0, 3.0], np.array([True, False, True]))})
    assert len(read_csv(alone)) == 3, "a single column keeps its empty rows"
    assert to_csv({"a": np.array([])}) == b"a\n"
    assert to_csv({}).strip() == b""
    with pytest.raises(ValueError, match="differ in length"):
        to_csv({"a": np.array([1.0]), "b": np.array([1.0, 2.0])})


def test_a_table_is_written_a_few_rows_at_a_time(monkeypatch):
    there = np.arange(7) % 3 > 0
    store = Rows(7, a=masked(np.arange(7.0) / 3, there), b=masked(np.full(7, np.nan), ~there))
    files = []
    for cells in (1, 10, 1000):
        monkeypatch.setattr("toolkit.telemetry.runs.columns.export._CELLS_AT_ONCE", cells)
        table = pq.read_table(io.BytesIO(metrics_to_parquet(store, "r", ["a", "b"])))
        files.append((metrics_to_csv(store, "r", ["a", "b"]), str(table.to_pydict())))

    assert files[0] == files[1] == files[2]
    assert files[0][0].count(b"\n") == 8


def test_a_table_that_is_too_large_or_lacks_a_metric_is_refused(monkeypatch):
    store = Rows(3, a=np.arange(3.0))
    with pytest.raises(Refused, match="1 of 2 metrics could not be read"):
        metrics_to_csv(store, "r", ["a", "b"])
    monkeypatch.setattr("toolkit.telemetry.runs.columns.export._MAX_CELLS", 11)
    with pytest.raises(Refused, match="this one has 12"):
        metrics_to_parquet(store, "r", ["a"])


@tries
@given(run=any_text, kind=any_text, extension=any_text)
def test_a_download_has_one_plain_name(run, kind, extension):
    name = download_name(run, kind, extension)

    assert name == name.strip()
    assert len(name) < 255
    assert is_safe_name(name[:120].rstrip("."))
    assert download_name("Grey Jacket", "steps", "csv") == "Grey-Jacket-steps.csv"
