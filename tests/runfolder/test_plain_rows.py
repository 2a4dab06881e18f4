"""Rows made from lines are those made from records, and lines that are not plain are left to the parser."""

import math
import random

import pytest

from toolkit.runfolder import csv_table, plain_lines
from toolkit.runfolder.codec import decode, encode
from toolkit.runfolder.csv_table import ALL, SHORT, CsvTable, columns_for
from toolkit.runfolder.plain_rows import LineRows
from toolkit.runfolder.reader import read_from
from toolkit.runfolder.repair import build_table

USUAL = {"session": 1, "global_step": 7, "nan_inf_detected": False, "train_loss": 0.5, "lr": 1e-4}


def lines_of(*fields, event="step"):
    return [
        encode({"event": event, "seq": seq, "time": 1_703_123_456.5 + seq / 8, **given})[:-1]
        for seq, given in enumerate(fields)
    ]


def rows_for(lines, form=SHORT, seen=None):
    """Return the rows of `lines` in a table that has had rows of the fields of `seen`, which is one of them."""
    columns = columns_for(form)
    record = decode(seen or lines[0])
    columns.add_new_of(record)
    columns.parts(record)
    return LineRows(columns).rows_of(lines), columns


def test_a_row_has_the_cells_of_the_record():
    lines = lines_of(USUAL, {**USUAL, "nan_inf_detected": True, "train_loss": 2, "lr": -1.5e300})

    found, columns = rows_for(lines)

    assert [row.decode() for row in found[0].rows] == [
        ",".join(columns.parts(decode(line))) for line in lines
    ]
    assert found[0].seqs == [0, 1]


def test_lines_of_records_without_a_row_are_left_out():
    lines = [
        *lines_of(USUAL),
        *lines_of({"gpu/0/util": 5}, {"note": "some, text"}, event="system"),
        *lines_of(USUAL),
    ]

    found, _ = rows_for(lines)

    assert [len(group.rows) for group in found] == [1, 1]


def test_patterns_are_bounded(monkeypatch):
    monkeypatch.setattr(plain_lines, "_MOST_PATTERNS", 3)
    columns = columns_for(SHORT)
    rows = LineRows(columns)
    for number in range(10):
        (line,) = lines_of({**USUAL, f"metric_{number}": 1.5})
        columns.add_new_of(decode(line))
        columns.parts(decode(line))
        rows.rows_of([line])

    assert len(rows._lines._patterns) <= 3


@pytest.mark.parametrize(
    "odd",
    [
        {**USUAL, "train_loss": None},
        {**USUAL, "train_loss": math.nan},
        {**USUAL, "train_loss": "text"},
        {**USUAL, "train_loss": [1, 2]},
        {**USUAL, "train_loss": {"lr": 1}},
        {**USUAL, "new": 1},
        {name: value for name, value in USUAL.items() if name != "lr"},
        {"session": "train_loss", "global_step": 7, "nan_inf_detected": 1, "lr": 1, "epoch": 2},
    ],
    ids=str,
)
def test_other_values_and_fields_are_left_to_the_parser(odd):
    usual, other = lines_of(USUAL, odd)

    for lines in ([usual, other], [other, usual], [other]):
        assert rows_for(lines, seen=usual)[0] is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-1],
        lambda line: line[:-4],
        lambda line: line[1:],
        lambda line: line + b"}",
        lambda line: line + line,
        lambda line: line.replace(b"0.5", b""),
        lambda line: line.replace(b"0.5", b"0\0005"),
        lambda line: line.replace(b"0.5", b"NaN"),
        lambda line: line.replace(b"0.5", b"0.5 "),
        lambda line: line.replace(b"false", b"fals"),
        lambda line: line.replace(b'"seq":1', b'"seq":1.5'),
        lambda line: line.replace(b'"seq":1', b'"seq":true'),
        lambda line: line.replace(b"train_loss", b"train\\u005floss"),
        lambda line: line.replace(b"train_loss", b"train_l\xffss"),
        lambda line: b"",
        lambda line: b"\0" * len(line),
    ],
)
def test_damaged_lines_are_left_to_the_parser(damage):
    first, line, last = lines_of(USUAL, USUAL, USUAL)

    assert rows_for([first, damage(line), last], seen=first)[0] is None
    assert rows_for([damage(line)], seen=first)[0] is None


@pytest.mark.parametrize("form", [SHORT, ALL])
@pytest.mark.parametrize("page", [256, 4096])
def test_a_table_made_of_lines_is_the_one_that_is_built_of_records(tmp_path, monkeypatch, form, page):
    monkeypatch.setattr(csv_table, "_PAGE", page)
    monkeypatch.setattr(csv_table, "_ROOM", page // 8)
    monkeypatch.setattr(csv_table, "_QUICK_S", math.inf)
    chance = random.Random(5)
    kinds = [
        lambda: ("step", {**USUAL, "train_loss": chance.random(), "lr": chance.choice([1e-4, 0, True])}),
        lambda: ("step", {**USUAL, "train_loss": chance.choice([0.1, None, math.inf]), "acc": 1.0}),
        lambda: ("step", {**USUAL, f"m{chance.randrange(3)}": chance.gauss(0, 1e10), "late": 2**40}),
        lambda: ("eval", {"session": 1, "global_step": 3, "val_loss": chance.random(), "true": True}),
        lambda: ("system", {"session": 1, "gpu/0/util": 1, "host": "a"}),
        lambda: ("message", {"session": 1, "text": "é, \n"}),
    ]
    records, table = tmp_path / "metrics.jsonl", CsvTable(tmp_path / "metrics.csv", form=form)
    seq = taken = 0
    for _ in range(60):
        kind = chance.choice([*kinds, kinds[0], kinds[0]])
        lines = []
        for _ in range(chance.randrange(1, 30)):
            event, fields = (chance.choice(kinds) if chance.random() < 0.02 else kind)()
            when = 1_703_123_456.5 + seq / 8
            lines.append(encode({"event": event, "seq": seq, "time": when, **fields}))
            seq += 1
        with records.open("ab") as file:
            file.write(b"".join(lines))
        if table.append_lines([line[:-1] for line in lines]):
            taken += 1
        else:
            table.append([decode(line) for line in lines])
    table.settle()
    table.close()
    build_table(records, tmp_path / "rebuilt.csv", form=form)

    assert (tmp_path / "metrics.csv").read_bytes() == (tmp_path / "rebuilt.csv").read_bytes()
    assert taken > 20 or form == ALL
    assert len(read_from(records).records) == seq


def test_lines_of_old_records_get_no_second_row(tmp_path):
    table = CsvTable(tmp_path / "metrics.csv", form=SHORT)
    lines = lines_of(*[USUAL] * 4)
    table.append([decode(lines[0])])

    assert table.append_lines(lines[1:3])
    assert not table.append_lines(lines[2:])
    assert table.last_seq == 2
    assert not table.append_lines([lines[3], lines[3]])
    assert table.append_lines(lines[3:])
    assert (tmp_path / "metrics.csv").read_bytes().count(b"\n") == 5
    table.close()
