"""The usual table: what a person logs, numbers first, no text that a cell has no room for."""

from __future__ import annotations

import csv
import io
import math

import pandas as pd
import pytest

from toolkit.telemetry.runfolder.codec import decode, encode
from toolkit.telemetry.runfolder.table.columns import FIRST_COLUMNS, MAX_COLUMNS, OF_THE_END, Columns
from toolkit.telemetry.runfolder.table.csv_table import ALL, SHORT, CsvTable, form_of_table
from toolkit.telemetry.runfolder.table.short_columns import ShortColumns

START = {"event": "start", "run_name": "r", "learning_rate": 0.1, "config": {"a": 1}, "host": "h", "pid": 5}
STEP = {"event": "step", "time": 5.5, "global_step": 1, "train_loss": 0.5, "reward": 2.0, "time/forward": 0.1}


def columns_of(*records):
    columns = ShortColumns()
    for record in records:
        columns.add_new_of(record)
    return columns


def table(*records):
    columns = columns_of(*records)
    rows = [",".join(columns.parts(record)) for record in records if columns.has_row(record)]
    return "\n".join([columns.header(), *rows]) + "\n"


def test_numbers_that_are_logged_come_before_everything_else():
    columns = columns_of(
        START, STEP, {"event": "eval", "accuracy": 0.5}, {"event": "sample", "path": "a.png"}
    )

    assert columns.names == [
        *FIRST_COLUMNS,
        *("reward", "accuracy"),
        *OF_THE_END,
        *("run_name", "learning_rate", "path"),
    ]


@pytest.mark.parametrize("event", ["span", "span_start", "span_summary", "ledger", "system", "completion"])
def test_what_no_person_logs_has_no_row(event):
    assert not ShortColumns.has_row({"event": event})
    assert Columns.has_row({"event": event})


@pytest.mark.parametrize(
    "event",
    [
        "start",
        "step",
        "eval",
        "epoch",
        "checkpoint",
        "sample",
        "control_change",
        "finding",
        "error",
        "end",
        "mine",
    ],
)
def test_what_a_person_logs_has_a_row(event):
    assert ShortColumns.has_row({"event": event})


def test_what_is_no_short_text_or_number_has_no_column():
    found = columns_of(
        {"event": "mine", "list": [1], "object": {"a": 1}, "text": "t", "flag": True, "nothing": None}
    )

    assert found.names[len(FIRST_COLUMNS) + len(OF_THE_END) :] == ["text", "flag"]
    text = table({"event": "mine", "time": 1.0, "text": "x" * 5_000})
    assert len(text) < 1_000
    assert "[5000 characters]" in text


def test_a_text_where_a_number_belongs_is_left_to_the_records():
    frame = pd.read_csv(
        io.StringIO(table(STEP, {**STEP, "reward": "high, and rising"}, {**STEP, "reward": 3.0}))
    )

    assert frame["reward"].tolist()[::2] == [2.0, 3.0]
    assert math.isnan(frame["reward"][1])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_have_a_cell_and_a_leading_column(number):
    record = decode(encode({**STEP, "reward": number}))
    columns = columns_of(record)
    frame = pd.read_csv(io.StringIO(table(record)))

    assert columns.names.index("reward") < columns.names.index("status")
    assert frame["reward"][0] == number or (math.isnan(number) and math.isnan(frame["reward"][0]))


def test_rows_of_every_shape_are_right_after_columns_came_between_them():
    records = [
        START,
        STEP,
        {"event": "sample", "path": "a, b.png", "prompt": 'a "quoted" cat'},
        {**STEP, "entropy": 4.0},
        {"event": "eval", "val_loss": 0.25, "f1": 0.5},
        STEP,
    ]
    rows = list(csv.DictReader(io.StringIO(table(*records))))

    assert [row["event"] for row in rows] == ["start", "step", "sample", "step", "eval", "step"]
    assert (rows[1]["reward"], rows[3]["entropy"], rows[4]["f1"]) == ("2.0", "4.0", "0.5")
    assert (rows[2]["path"], rows[2]["prompt"]) == ("a, b.png", 'a "quoted" cat')
    assert rows[0]["run_name"] == "r"
    assert "time/forward" not in rows[1]


def test_so_many_columns_and_no_more():
    columns = columns_of({"event": "step", **{f"m{number}": 1.0 for number in range(5_000)}})

    assert len(columns.names) == MAX_COLUMNS
    assert len(columns.left_out) == MAX_COLUMNS


def test_what_was_added_can_be_taken_back():
    columns = columns_of(STEP)
    before = columns.snapshot()
    names = list(columns.names)
    columns.add_new_of({**STEP, "more": 1.0, "text": "t"})
    columns.restore(before)

    assert columns.names == names
    assert columns.add_new_of({**STEP, "more": 1.0, "text": "t"}) == 2


@pytest.mark.parametrize("form", [ALL, SHORT])
def test_the_form_of_a_table_is_known_by_its_header(tmp_path, form):
    with_table = CsvTable(tmp_path / "metrics.csv", form=form)
    with_table.append([{**START, "time": 1.0, "seq": 0}, {**STEP, "seq": 1}])
    with_table.close()

    assert form_of_table(tmp_path / "metrics.csv") == form


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "event,time,timestamp\n", "\xff\n", '"open\n'])
def test_a_table_that_is_not_ours_has_no_form(tmp_path, content):
    (tmp_path / "metrics.csv").write_text(content)

    assert form_of_table(tmp_path / "metrics.csv") is None
    assert form_of_table(tmp_path / "absent.csv") is None
