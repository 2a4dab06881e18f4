"""`telemetry sql`: ask one SELECT over runs, ours and those of other tools."""

from __future__ import annotations

import argparse
import datetime
import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, add_paths_argument, print_to_stderr, refuse
from toolkit.telemetry.cli.run_list import missing_runs
from toolkit.telemetry.cli.terminal import Column, Progress, add_json_argument, print_json, print_table
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.importers.summary import number
from toolkit.telemetry.runfolder.table.columns import write_csv

if TYPE_CHECKING:
    import pyarrow as pa

JSON_FORM: Final = """\
an object with `columns` (the names), `rows` (an object for each, by name) and `notes` (what could not be read). \
A time is a text such as `2026-11-18T14:13:33.058417+00:00`; a number that is not finite is `"NaN"`, `"Infinity"` or \
`"-Infinity"`; a value that is not there is `null`."""

_MOST_PRINTED: Final = 1_000
_ROWS_AT_ONCE: Final = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the statement, where the runs are, and the form of the answer."""
    parser.add_argument(
        "statement", metavar="SELECT", help="one SELECT, as DuckDB has it; - reads it from stdin"
    )
    add_paths_argument(parser)
    forms = parser.add_mutually_exclusive_group()
    add_json_argument(forms)
    forms.add_argument("--csv", action="store_true", help="print CSV")
    forms.add_argument("--parquet", metavar="FILE", type=Path, help="write the answer to this Parquet file")
    parser.epilog = (
        "Tables: runs, settings, steps, evals, system, spans, findings, requests; `describe steps` lists its columns. "
        "Nothing is changed, and no other file can be read. Exit code: 0; 2 if the statement cannot be answered, "
        "or there is no run."
    )


def run(args: argparse.Namespace) -> int:
    """Print the answer; return 2 if there is none."""
    if any(find_spec(name) is None for name in ("duckdb", "numpy", "pyarrow")):
        return refuse(f"telemetry sql needs {install_extra('sql')}")
    from toolkit.telemetry.runs.tables.query import QueryError, query
    from toolkit.telemetry.runs.tables.run_tables import RunTables

    with suppress(OSError):
        # If a statement takes all memory, this process is to be ended, not a training.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with Progress() as progress:
        tables = RunTables(args.paths, on_run=progress.show, logs=LOGS)
        runs = tables.runs()
        missing = missing_runs(args.paths, [*runs.values()], tables.folders)
        try:
            statement = sys.stdin.read() if args.statement == "-" else args.statement
            answer = query(statement, tables, on_stuck=_end) if runs else None
        except QueryError as error:
            return refuse(str(error))
    if answer is not None:
        _write(answer, tables.notes, args)
    for sentence in (*tables.folders.namesakes, *missing, *(() if args.json else tables.notes)):
        print_to_stderr(sentence)
    return 0 if runs else 2


def _end(problem: str) -> None:
    print_to_stderr(problem)
    os._exit(2)


def _write(answer: pa.Table, notes: Iterable[str], args: argparse.Namespace) -> None:
    """Print or write the answer."""
    if args.parquet is not None:
        import pyarrow.parquet as pa_parquet

        # It imports what reports are made of.
        from toolkit.telemetry.cli.report_content import write_report

        sink = io.BytesIO()
        pa_parquet.write_table(answer, sink, compression="zstd")
        write_report(args.parquet, sink.getvalue())
        print(f"{args.parquet}: {answer.num_rows:,} rows")
    elif args.json:
        rows = _value(answer.to_pylist())
        print_json({"columns": answer.column_names, "rows": rows, "notes": [*notes]})
    elif args.csv:
        write_csv(sys.stdout, [answer.column_names])
        for batch in answer.to_batches(max_chunksize=_ROWS_AT_ONCE):
            write_csv(sys.stdout, (map(_cell, row.values()) for row in batch.to_pylist()))
    else:
        columns = [Column(field.name, right=_is_number(field.type)) for field in answer.schema]
        shown = answer.slice(0, _MOST_PRINTED).to_pylist()
        print_table(columns, [[_text(cell) for cell in row.values()] for row in shown])
        if answer.num_rows > _MOST_PRINTED:
            print_to_stderr(
                f"{answer.num_rows - _MOST_PRINTED:,} more rows are not shown; --csv, --json and --parquet have all"
            )


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _value(cell: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(cell, float):
        return number(cell)
    if isinstance(cell, Decimal):
        return int(cell) if cell == int(cell) else float(cell)
    if isinstance(cell, dict):
        return {str(name): _value(value) for name, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_value(value) for value in cell]
    if isinstance(cell, (datetime.date, datetime.time)):
        return cell.isoformat()
    return cell if cell is None or isinstance(cell, (bool, int, str)) else str(cell)


def _cell(cell: Any) -> Any:
    return cell if isinstance(cell, float) else _value(cell)


def _text(cell: Any) -> str:
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ", "seconds")
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return "" if cell is None else ", ".join(map(str, cell)) if isinstance(cell, list) else str(_value(cell))
