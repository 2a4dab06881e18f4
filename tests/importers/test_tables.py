"""Rows of a table are read as far as they go."""

from __future__ import annotations

import json
import math

import pytest

from tests.importers.reading import only_run, points_in
from toolkit.telemetry.importers.source import NO_STEP, read_all
from toolkit.telemetry.runfolder.records import MAX_LINE_BYTES


def everything(path):
    source = only_run(path)
    batches = [*read_all(source)]
    counts = [dict(getattr(batch, kind)) for batch in batches for kind in ("passed_over", "not_numbers")]
    return points_in(batches), counts


def test_an_exported_table_with_odd_cells_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "points.csv"
    header = "run,session,event,step,time,metric,value\n"
    path.write_text(header + "a,inf,step,1,2.5,1,0.5\nb,nan,x,,,loss,nan\na,1,eval,2,,val,text\n")

    points, counts = everything(path)
    assert points == {(0, 0, "1"): [(1, "2.5", "0.5")], (1, 0, "loss"): [(NO_STEP, "nan", "nan")]}
    assert counts[0] == {(0, "rows without a number"): 1}


def table(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def losses(path):
    """Return steps and values of the loss, and the notes about the table."""
    points, _ = everything(path)
    found = [
        (step, float(value))
        for (*_, name), rows in points.items()
        if name == "loss"
        for step, _, value in rows
    ]
    source = only_run(path)
    list(read_all(source))
    return found, source.info.notes


@pytest.mark.parametrize("token", ["NaN", '"NaN"', "Infinity", '"-Infinity"', "1e999", "1" + 400 * "0"])
def test_every_way_to_write_what_json_has_no_number_for_is_understood(tmp_path, token):
    ((step, value),), _ = losses(table(tmp_path / "x.jsonl", f'{{"step": 1, "loss": {token}}}'))

    assert step == 1
    assert not math.isfinite(value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_is_read_by_its_header(tmp_path, delimiter):
    rows = [
        ["# step", " loss ", "lr", "note"],
        ["3", "0.5", "", "x"],
        ["4", " 1e-3 ", "0.1", ""],
        ["5", "-inf"],
    ]
    path = table(tmp_path / "x.csv", *map(delimiter.join, rows))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))

    points, counts = everything(path)
    assert {name: [row[::2] for row in rows] for (*_, name), rows in points.items()} == {
        "loss": [(3, "0.5"), (4, "0.001"), (5, "-inf")],
        "lr": [(4, "0.1")],
    }
    assert counts == [{}, {(0, "note"): 1}]


@pytest.mark.parametrize(
    "name", "step Step iteration iter _step current_steps trainer/global_step train/global_step".split()
)
def test_the_step_is_found_whatever_it_is_called(tmp_path, name):
    rows = [{"_step": 1, name: 10, "loss": 1.0, "epoch": 0}, {"lr": 1.0}, {name: 30, "loss": 2.0, "epoch": 0}]
    path = table(tmp_path / "x.jsonl", *rows)

    assert losses(path) == ([(10, 1.0), (30, 2.0)], [])
    assert everything(path)[0][0, 0, "lr"] == [(NO_STEP, "nan", "1.0")], "a row without a step has none"


def test_without_steps_epochs_count_or_else_rows(tmp_path):
    epochs = table(tmp_path / "epochs.jsonl", *({"epoch": n, "loss": 1.0} for n in range(1, 4)))
    assert losses(epochs) == (
        [(1, 1.0), (2, 1.0), (3, 1.0)],
        ["it has no step numbers: its epochs count as steps"],
    )
    for epoch in (lambda n: n / 100, lambda n: n // 50, lambda _: None):
        rows = table(tmp_path / "rows.jsonl", *({"epoch": epoch(n), "loss": 1.0} for n in range(120)))
        found, notes = losses(rows)
        assert [step for step, _ in found] == list(range(120))
        assert notes == ["it has no step numbers: rows count as steps, from 0"]


def test_the_kind_of_a_row_is_what_its_fields_say(tmp_path):
    path = table(
        tmp_path / "x.jsonl",
        {"step": 1, "loss": 1.0},
        {"step": 2, "eval_loss": 1.0},
        {"step": 3, "loss": 9.0, "train_runtime": 60.0},
        {"step": 4, "loss": 9.0, "event": "mine"},
        {"step": 5, "loss": 9.0, "event": "system"},
    )
    columns = [column for batch in read_all(only_run(path)) for column in batch.columns]

    kinds = {step: column.kind for column in columns for step in column.steps}
    assert kinds == {1: "step", 2: "eval", 3: "epoch", 4: "step", 5: "system"}


def test_what_is_no_row_is_counted(tmp_path):
    rows = [
        "1,0.5",
        "step,loss",
        "# a comment",
        "",
        "2,0.5,0.5",
        "3,0.5",
        '4,"0.',
        '5"',
        "6,0\x00.5",
        '7,"0.5',
    ]
    points, counts = everything(table(tmp_path / "x.csv", "step,loss", *rows))
    assert [step for step, *_ in points[0, 0, "loss"]] == [1, 3]
    assert counts[0] == {(0, "rows without a number, or with more cells than the header"): 3}

    lines = ["", "  \r", "[1]", "17", "NaN", "{", "{" * 5000, "[" * 100_000]
    lines.append('{"x": "' + "x" * MAX_LINE_BYTES + '"}')
    path = table(tmp_path / "x.jsonl", {"step": 1, "loss": 1.0}, *lines, {"step": 2, "loss": 1.0})
    assert [step for step, _ in losses(path)[0]] == [1, 2]
    assert sum(everything(path)[1][0].values()) == 7


def test_a_quote_that_is_never_closed_does_not_take_the_rest_of_the_file(tmp_path):
    path = table(tmp_path / "x.csv", "step,loss", '2,"0.5', *(f"{n},0.5" for n in range(3, 5_000)))

    assert len(losses(path)[0]) > 2_000
    assert everything(path)[1][0] == {(0, "rows with a quote that is never closed"): 1}
