"""Columns and records as files for other programs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from pandas.api.types import is_numeric_dtype

from toolkit.runfolder.layout import safe_run_name
from toolkit.runfolder.table.columns import no_formula, write_csv
from toolkit.runs.formatting import clean
from toolkit.runs.store import Floats

Present = Mapping[str, npt.NDArray[np.bool_]]
"""For some columns, which rows have a value; other columns have one in every row."""


def to_csv(columns: Mapping[str, Floats], present: Present | None = None) -> bytes:
    """Return `columns` as a CSV table that pandas reads back; the digits are enough for the same float64.

    A row without a value has an empty cell; non-finite values are `nan`, `inf` or `-inf`. A header that a
    spreadsheet would treat as a formula gets a leading apostrophe.

    Raises:
        ValueError: the columns differ in length.
    """
    table = _table(columns, present)
    head = io.StringIO()
    write_csv(head, [table.column_names])
    body = io.BytesIO()
    pa_csv.write_csv(table, body, pa_csv.WriteOptions(include_header=False, quoting_style="needed"))
    data = body.getvalue()
    if table.num_columns == 1:
        # A single empty cell makes an empty line, which readers skip; in quotes it is a row.
        data = b"".join((line or b'""') + b"\n" for line in data.split(b"\n")[:-1])
    return head.getvalue().encode() + data


def to_parquet(columns: Mapping[str, Floats], present: Present | None = None) -> bytes:
    """Return `columns`, of one length, as a Parquet file; a row without a value is null, and NaN stays NaN."""
    sink = io.BytesIO()
    pa_parquet.write_table(_table(columns, present), sink, compression="zstd")
    return sink.getvalue()


def shown_frame(data: Any) -> pd.DataFrame:
    """Return a table to be shown: its menu saves it as CSV, and no cell of that is a formula to a spreadsheet."""
    frame = pd.DataFrame(data)
    frame.columns = [no_formula(str(name)) for name in frame.columns]
    if not is_numeric_dtype(frame.index):
        frame.index = frame.index.map(_marked)
    marked: pd.DataFrame = frame.apply(lambda one: one if is_numeric_dtype(one) else one.map(_marked))
    return marked


def _marked(cell: object) -> object:
    return no_formula(cell) if isinstance(cell, str) else cell


def download_name(run_name: str, kind: str, extension: str) -> str:
    """Return a safe file name such as greyjacket-steps.csv."""
    ending = re.sub(r"[^A-Za-z0-9]", "", extension)[:16] or "txt"
    return f"{safe_run_name(run_name)}-{safe_run_name(kind)}.{ending}"


def _table(columns: Mapping[str, Floats], present: Present | None) -> pa.Table:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns differ in length: {lengths}")
    arrays = []
    for name, column in columns.items():
        mask = None if present is None or name not in present else ~np.asarray(present[name], dtype=np.bool_)
        # from_pandas would turn every NaN into null.
        arrays.append(pa.array(np.asarray(column, dtype=np.float64), mask=mask, from_pandas=False))
    return pa.table(arrays, names=[clean(name) for name in columns])
