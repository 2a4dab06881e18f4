"""What a run folder must look like after whatever happened to the process that wrote it."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from pathlib import Path

import pandas as pd

from tests.records import Record, read_records
from toolkit.telemetry.runfolder.table.columns import Columns
from toolkit.telemetry.runfolder.table.csv_table import table_form


def assert_nothing_is_missing(records: list[Record], *, first: int = 0) -> None:
    """Every `seq` from `first` on is there once and in order, or a `lost` record speaks of it; those count exactly."""
    seqs = [record["seq"] for record in records]
    assert seqs == sorted(set(seqs)), f"out of order or twice: {_first_disorder(seqs)}"
    absent = set(range(first, seqs[-1] + 1)) - set(seqs)
    # What was logged after the end never had a number.
    declared = [record for record in records if record["event"] == "lost" and "from_seq" in record]
    assert len(absent) == sum(record["records"] for record in declared), (
        f"{len(absent)} absent: {_ranges(absent)}; declared: "
        f"{[(record['records'], record['from_seq'], record['to_seq']) for record in declared]}"
    )
    for record in declared:
        inside = {seq for seq in absent if record["from_seq"] <= seq <= record["to_seq"]}
        assert len(inside) == record["records"], record
        absent -= inside
    assert not absent, f"not declared: {_ranges(absent)}"


def with_rows(run: Path, records: list[Record]) -> list[Record]:
    """Return those of `records` that the table of a run has a row for."""
    has_row = Columns(table_form(run)).has_row
    return [record for record in records if has_row(record)]


def assert_table_matches(run: Path, records: list[Record]) -> pd.DataFrame:
    """pandas opens the table, and it has one row for each of `records` that has one at all; returns it."""
    table = pd.read_csv(run / "metrics.csv", low_memory=False)
    expected = with_rows(run, records)
    assert table["seq"].tolist() == [record["seq"] for record in expected]
    assert table["event"].tolist() == [record["event"] for record in expected]
    return table


def whole_rows(table: Path) -> pd.DataFrame:
    """Return a table as far as its rows are whole: a kill or an early look may find half of the last one."""
    return pd.read_csv(io.BytesIO(table.read_bytes().rpartition(b"\n")[0]), low_memory=False)


def whole_run(run: Path, *, steps: range | None = None, torn_lines: int = 0, first: int = 0) -> list[Record]:
    """Return the records of a run in which nothing is missing and whose table matches; `steps` are all there, once."""
    # What a caller logs under a name of ours is of any type.
    records = read_records(run, bad_lines=torn_lines, of_any_type=True)
    assert_nothing_is_missing(records, first=first)
    assert_table_matches(run, records)
    if steps is not None:
        assert_steps(records, steps)
    return records


def assert_steps(records: list[Record], steps: range) -> None:
    """Each of `steps` has a record, and only one; of later ones, not acknowledged any more, at most one came along."""
    counted = Counter(record["global_step"] for record in records if record["event"] == "step")
    missing = [step for step in steps if step not in counted]
    assert not missing, f"{len(missing)} acknowledged steps are missing: {missing[:5]} … {missing[-5:]}"
    twice = [step for step, count in counted.items() if count > 1]
    assert not twice, f"written twice: {twice[:5]}"
    assert len(counted) <= len(steps) + 1


def _first_disorder(seqs: list[int]) -> list[int]:
    for at, (one, other) in enumerate(itertools.pairwise(seqs)):
        if other <= one:
            return seqs[max(0, at - 3) : at + 4]
    return []


def _ranges(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    return f"{ordered[:5]} … {ordered[-5:]}" if len(ordered) > 10 else str(ordered)
