"""Columns and curves as files for other programs."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from toolkit.telemetry.runfolder.layout import safe_run_name
from toolkit.telemetry.runfolder.table.columns import no_formula, write_csv
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import FIRST_COLUMNS, Floats, Refused, RunStore, Series

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS: Final = 1_000_000
_MAX_CELLS: Final = 50_000_000
_CELLS_AT_ONCE: Final = 2_000_000


def to_csv(columns: Mapping[str, Floats], *, header: bool = True) -> bytes:
    """Return `columns` as a CSV table that pandas reads back; the digits are enough for the same float64.

    A masked cell is empty; non-finite values are `nan`, `inf` or `-inf`. A header that a
    spreadsheet would treat as a formula gets a leading apostrophe.

    Raises:
        ValueError: the columns differ in length.
    """
    table = _table(columns)
    head = io.StringIO()
    write_csv(head, [table.column_names] if header else ())
    body = io.BytesIO()
    pa_csv.write_csv(table, body, pa_csv.WriteOptions(include_header=False, quoting_style="needed"))
    data = body.getvalue()
    if table.num_columns == 1:
        # A single empty cell makes an empty line, which readers skip; in quotes it is a row.
        data = b"".join((line or b'""') + b"\n" for line in data.split(b"\n")[:-1])
    return head.getvalue().encode() + data


def metrics_to_csv(store: RunStore, key: str, metrics: Sequence[str]) -> bytes:
    """Return these metrics of a run as `to_csv` does. Raises Refused if one cannot be read, or it is too large."""
    sink = io.BytesIO()
    for columns in _parts(store, key, metrics):
        sink.write(to_csv(columns, header=not sink.tell()))
    return sink.getvalue()


def metrics_to_parquet(store: RunStore, key: str, metrics: Sequence[str]) -> bytes:
    """Return them as a Parquet file: a masked cell is null, and NaN stays NaN. Raises Refused likewise."""
    sink = io.BytesIO()
    schema = pa.schema([(clean(name), pa.float64()) for name in (*FIRST_COLUMNS, *metrics)])
    with pa_parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for columns in _parts(store, key, metrics):
            writer.write_table(_table(columns))
    return sink.getvalue()


def _parts(store: RunStore, key: str, metrics: Sequence[str]) -> Iterator[Mapping[str, Floats]]:
    """Yield the table of these metrics, a few rows at a time."""
    total, width = len(store.table(key, [])["time"]), len(FIRST_COLUMNS) + len(metrics)
    if total * width > _MAX_CELLS:
        raise Refused(
            f"a browser is sent tables of up to {_MAX_CELLS:,} cells, and this one has {total * width:,}; "
            "`telemetry export` writes it from the run folder"
        )
    step = max(1, _CELLS_AT_ONCE // width)
    for first in range(0, max(1, total), step):
        columns = store.table(key, metrics, rows=(first, min(total, first + step)))
        if missing := width - len(columns):
            raise Refused(f"{missing:,} of {len(metrics):,} metrics could not be read now")
        yield columns


def curves_to_csv(
    curves: Sequence[tuple[str, Series]], axis: str, window: tuple[float, float] | None
) -> bytes:
    """Return the points of `curves`, each with the name of its run, inside `window`.

    A row has run, metric, session, x and value.

    `superseded` is 1 for points of a session that a later one has taken over from. The digits are enough for the same
    float64; values that are not finite are `nan`, `inf` or `-inf`. A name that a spreadsheet would treat as a formula
    gets a leading apostrophe.

    Raises:
        Refused: there are more than a browser is sent at once; the message says what to do.
    """
    parts = [
        (clean(run), clean(series.metric), segment, superseded)
        for run, series in curves
        for superseded, segments in enumerate((series.segments, series.superseded))
        for segment in segments
    ]
    if sum(len(segment.x) for _, _, segment, _ in parts) > _MAX_ROWS:
        raise Refused(
            f"These curves have more than {_MAX_ROWS:,} points. Zoom in, or export the run with `telemetry export`."
        )
    text = io.StringIO()
    write_csv(text, [("run", "metric", "session", axis, "value", "superseded")])
    for run, metric, segment, superseded in parts:
        x, y = segment.x, segment.y
        if window is not None:
            inside = (x >= min(window)) & (x <= max(window))
            x, y = x[inside], y[inside]
        write_csv(
            text,
            (
                (run, metric, segment.session, place, value, superseded)
                for place, value in zip(_numbers(x), y.tolist(), strict=True)
            ),
        )
    return text.getvalue().encode("utf-8", "replace")


def shown_frame(data: Any) -> pd.DataFrame:
    """Return a table to be shown: its menu saves it as CSV, and no cell of that is a formula to a spreadsheet."""
    # Imported here: it takes as long as all else that a page of curves needs, and those have no table.
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

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


def _table(columns: Mapping[str, Floats]) -> pa.Table:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns differ in length: {lengths}")
    arrays = []
    for column in columns.values():
        mask = np.ma.getmaskarray(column)
        # from_pandas would turn every NaN into null.
        arrays.append(pa.array(np.asarray(column, dtype=np.float64), mask=mask, from_pandas=False))
    return pa.table(arrays, names=[clean(name) for name in columns])


def _numbers(x: Floats) -> list[float] | list[int]:
    """Return steps as whole numbers."""
    if np.isfinite(x).all() and np.all(x % 1 == 0) and np.all(np.abs(x) < 2**53):
        return [int(value) for value in x.tolist()]
    return [float(value) for value in x.tolist()]
