"""A record as a row: every field in its column, no text that a spreadsheet would run, no cell of two lines."""

import csv
import io
import math

import pandas as pd
import pytest

from toolkit.telemetry.runfolder.table.columns import (
    ALL,
    FIRST_COLUMNS,
    MAX_COLUMNS,
    OF_THE_END,
    SHORT,
    Columns,
    no_formula,
)

START = {"event": "start", "run_name": "r", "learning_rate": 0.1, "config": {"a": 1}, "host": "h", "pid": 5}
STEP = {"event": "step", "time": 5.5, "global_step": 1, "train_loss": 0.5, "reward": 2.0, "time/forward": 0.1}


def columns_of(*records, form=ALL):
    columns = Columns(form)
    for record in records:
        columns.add_new_of(record)
    return columns


def table(*records, form=ALL):
    """Return the records as the text of a whole table."""
    columns = columns_of(*records, form=form)
    rows = [",".join(columns.row(record)) for record in records if columns.has_row(record)]
    return "\n".join([columns.header(), *rows]) + "\n"


def cells_of(text):
    return list(csv.reader(io.StringIO(text, newline="\n"), strict=True))


def cell(value):
    """Return the cell of a value, which is the only one of its record."""
    columns = columns_of({"x": value})
    return columns.row({"x": value})[-1]


def test_columns_come_in_order_of_appearance_after_those_that_every_table_has():
    columns = columns_of(START, STEP, {"event": "sample", "path": "a.png", "reward": 1.0}, form=SHORT)

    assert [*columns.names] == [
        *(*FIRST_COLUMNS, *OF_THE_END),
        *("run_name", "learning_rate", "reward", "path"),
    ]


@pytest.mark.parametrize("form", [ALL, SHORT])
def test_a_table_has_a_bounded_number_of_columns_and_counts_the_rest(form):
    record = {"event": "step", **{f"metric/{i}": i for i in range(5000)}}
    columns = columns_of(record, form=form)

    assert len(columns.names) == MAX_COLUMNS == len(columns.row(record))
    for start in range(0, 50_000, 5000):
        columns.add_new_of({"event": "step", **{f"other/{start + i}": 1 for i in range(5000)}})
    assert len(columns.left_out) == MAX_COLUMNS


def test_a_short_table_has_rows_of_what_a_person_logs():
    ours = ["span", "span_start", "span_summary", "ledger", "system", "completion"]
    theirs = ["start", "step", "eval", "epoch", "checkpoint", "finding", "end", "mine"]

    assert [event for event in ours + theirs if Columns(SHORT).has_row({"event": event})] == theirs
    assert all(Columns(ALL).has_row({"event": event}) for event in ours)


def test_what_is_no_short_text_or_number_has_no_column():
    found = columns_of(
        {"event": "mine", "list": [1], "object": {"a": 1}, "text": "t", "flag": True, "nothing": None},
        form=SHORT,
    )

    assert [*found.names][len(FIRST_COLUMNS) + len(OF_THE_END) :] == ["text", "flag"]
    text = table({"event": "mine", "time": 1.0, "text": "x" * 5_000}, form=SHORT)
    assert len(text) < 1_000
    assert "[5000 characters]" in text


def test_a_text_where_a_number_belongs_is_left_to_the_records():
    text = table(STEP, {**STEP, "reward": "high, and rising"}, {**STEP, "reward": 3.0}, form=SHORT)
    frame = pd.read_csv(io.StringIO(text))

    assert frame["reward"].tolist()[::2] == [2.0, 3.0]
    assert math.isnan(frame["reward"][1])


def test_a_number_with_a_unit_is_no_formula_and_one_with_a_cell_is():
    plain = ["+5.0 s", "-1 min 05 s", "-3 %", "-2.5e-4"]

    assert [no_formula(text) for text in plain] == plain
    assert all(no_formula(text)[0] == "'" for text in ("+A1", "+5 A1", "-1 s+A1", "-1 sum(a)", "+5 s!a"))


def test_two_names_with_the_same_header_share_a_column():
    columns = columns_of({"event": "step", "a\nb": 1}, {"event": "step", "a\\nb": 2})

    assert len(columns.names) == len(FIRST_COLUMNS) + len(OF_THE_END) + 1
    assert "2" in columns.row({"event": "step", "a\\nb": 2})


@pytest.mark.parametrize("text", ["x" * 60_000, "x y" * 20_000, "=" * 60_000, "é" * 30_000], ids=len)
def test_a_long_text_is_cut_and_says_how_long_it_was(text):
    found = cell(text)

    assert len(found) < 2100
    assert f"[{len(text)} characters]" in found
