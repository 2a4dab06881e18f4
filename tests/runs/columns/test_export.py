"""What is downloaded reads back as the same numbers, and a spreadsheet runs none of it."""

import io

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import any_text, tries
from toolkit.runfolder.layout import is_safe_name
from toolkit.runs.columns.export import download_name, to_csv, to_parquet


def read_csv(data):
    # Before pandas 3 the quick parser is a digit off now and then, and the exact one is asked for by name.
    exact = {} if int(pd.__version__.split(".")[0]) >= 3 else {"float_precision": "round_trip"}
    return pd.read_csv(io.BytesIO(data), **exact)


cells = st.lists(st.tuples(st.floats(), st.booleans()), max_size=8)


@tries
@given(cells=cells, width=st.integers(1, 3))
def test_pandas_reads_the_same_numbers_from_the_csv(cells, width):
    column = np.array([value for value, _ in cells], dtype=np.float64)
    there = np.array([present for _, present in cells], dtype=bool)
    columns = {f"c{i}": column for i in range(width)}

    frame = read_csv(to_csv(columns, dict.fromkeys(columns, there)))

    assert list(frame.columns) == list(columns)
    for name in columns:
        np.testing.assert_array_equal(frame[name].to_numpy(dtype=np.float64), np.where(there, column, np.nan))


@tries
@given(cells=cells)
def test_parquet_keeps_absent_and_nan_apart(cells):
    column = np.array([value for value, _ in cells], dtype=np.float64)
    there = np.array([present for _, present in cells], dtype=bool)

    back = pq.read_table(io.BytesIO(to_parquet({"a": column, "b": column}, {"a": there})))

    assert back["a"].is_valid().to_pylist() == there.tolist()
    assert back["b"].null_count == 0
    np.testing.assert_array_equal(np.array(back["a"].to_pylist(), dtype=np.float64)[there], column[there])
    np.testing.assert_array_equal(back["b"].to_numpy(), column)


def test_absent_nan_and_infinity_are_three_things_in_the_csv():
    column = np.array([1.0, np.nan, np.nan, np.inf, -np.inf, -1.5])
    there = np.array([True, True, False, True, True, True])

    data = to_csv({"step": np.arange(6.0), "loss": column}, {"loss": there})

    assert data == b"step,loss\n0,1\n1,nan\n2,\n3,inf\n4,-inf\n5,-1.5\n"


def test_a_single_column_keeps_its_empty_rows():
    data = to_csv({"loss": np.array([1.0, 2.0, 3.0])}, {"loss": np.array([True, False, True])})

    assert len(read_csv(data)) == 3


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", "\nx", "\uff1dx"])
def test_a_header_is_no_formula(name):
    header = to_csv({name: np.array([1.0])}).decode().lstrip('"')

    assert header.startswith("'") or not header.startswith(name)
    assert header[0] not in "=+-@\t\r\n\uff1d"


def test_a_header_with_commas_and_quotes_stays_one_header():
    names = ["a,b", 'say "x"', "two\nlines"]

    assert list(read_csv(to_csv({name: np.array([1.0, 2.0]) for name in names})).columns) == names


@tries
@given(name=any_text)
def test_any_metric_name_can_be_exported(name):
    columns = {name: np.array([1.0]), "other one": np.array([2.0])}

    assert to_csv(columns).endswith(b"\n1,2\n")
    assert to_parquet(columns)


def test_nothing_to_export_is_no_failure():
    assert to_csv({"a": np.array([])}) == b"a\n"
    assert to_csv({}).strip() == b""


def test_columns_of_two_lengths_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        to_csv({"a": np.array([1.0]), "b": np.array([1.0, 2.0])})


@tries
@given(run=any_text, kind=any_text, extension=any_text)
def test_a_download_has_one_plain_name(run, kind, extension):
    name = download_name(run, kind, extension)

    assert name == name.strip()
    assert len(name) < 255
    assert is_safe_name(name[:120].rstrip("."))
    assert download_name("Grey Jacket", "steps", "csv") == "Grey-Jacket-steps.csv"
