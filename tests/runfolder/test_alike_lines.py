"""Lines that are parsed into columns together are the records that they are one by one."""

from __future__ import annotations

import random

import orjson
import pytest

from toolkit.runfolder import alike_lines
from toolkit.runfolder.alike_lines import runs_in
from toolkit.runfolder.reader import Block, Cursor, records_in

pytest.importorskip("pyarrow.csv")

STEP = {"event": "step", "elapsed": 0.5, "global_step": 1, "loss": 2.5, "done": False, "note": "as ever"}


def block_of(lines):
    data = b"".join(line + b"\n" for line in lines)
    return Block(
        data=data, start=0, cursor=Cursor(len(data)), long_line=None, replaced=False, pending_bytes=0
    )


def steps(count, **fields):
    return [orjson.dumps({**STEP, "global_step": n, "loss": 1.0 / (n + 1), **fields}) for n in range(count)]


def both(lines):
    """Return the runs of these lines, which are the same records as they are one by one."""
    block = block_of(lines)
    found, bad = runs_in(block)
    assert (list(found), bad) == records_in(block)
    assert len(found) == sum(len(run.records) for run in found.runs)
    for run in found.runs:
        records = list(run.records)
        assert [run.records[place] for place in range(len(records))] == records
        assert all(tuple(record) == run.names for record in records)
        for name, column in run.columns.items():
            assert list(column) == [record[name] for record in records]
    return found.runs


def as_columns(lines):
    return sum(len(run.records) for run in both(lines) if run.arrays is not None)


def test_lines_with_the_same_fields_are_columns():
    (run,) = both(steps(200))

    assert run.arrays["global_step"].tolist() == list(range(200))
    assert run.arrays["global_step"].dtype == "int64"
    assert run.arrays["event"] == "step"
    part = run.part(50, 60)
    assert [record["global_step"] for record in part.records] == part.columns["global_step"]


def test_lines_of_other_kinds_between_them_keep_their_place():
    lines = steps(300)
    lines[100:100] = [
        b'{"event":"system","gpu":{"util":5}}',
        b"{broken",
        b"",
        b'{"event":"eval","val_loss":NaN}',
    ]

    assert as_columns(lines) == 300


def test_a_time_without_a_point_stays_an_integer():
    lines = [orjson.dumps({**STEP, "elapsed": 0.5 * n}) for n in range(200)]

    assert as_columns(lines) == 200
    assert as_columns([*lines, orjson.dumps({**STEP, "elapsed": 7})]) == 0


def test_two_kinds_of_steps_in_turn_are_both_columns():
    lines = [line for n in range(20) for line in (steps(10) if n % 2 else steps(10, val_loss=0.5))]

    assert as_columns(lines) == 200


@pytest.mark.parametrize(
    "odd",
    [
        *({"loss": value} for value in (None, True, "NaN", [1.0], {"a": 1}, 2**60, 1e300, -0.5, 7)),
        *({"note": value} for value in ("as, ever", "as: ever", 'as "ever', "as\\u00e9ver", "ás ever", "1")),
        *({"done": value} for value in (True, None, 0)),
        *({name: 1} for name in ("x", "done ", "los")),
    ],
)
def test_a_line_that_differs_is_what_it_is_by_itself(odd):
    lines = steps(200)
    lines[77] = orjson.dumps({**STEP, **odd})
    both(lines)
    both([*lines[:77], *lines[78:], orjson.dumps({**STEP, **odd})])


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"step","elapsed":0.5,"loss":1,"global_step":2.5,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"global_step":2.5,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":2.5,"done":false},"note":"as ever"',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":2.5,"done":false,"note":"as ever"',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":nan,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":1\r2,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":1e999,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":0x10,"done":false,"note":"as ever"}',
        b'{"event":"step","elapsed":0.5,"global_step":1,"loss":1,"done":false,"note":"as ever"}\r',
        b' {"event":"step", "elapsed":0.5,"global_step":1,"loss":1,"done":false,"note":"as ever"}',
    ],
)
def test_a_line_that_no_logger_writes_is_read_as_by_itself(line):
    both([*steps(100), line, *steps(100)])
    both([line, *steps(100)])


@pytest.mark.parametrize("blank", [b"", b" ", b"  "])
@pytest.mark.parametrize(
    "number",
    [b"1.", b".5", b"-.5", b"+1", b"01", b"-01", b"1.e5", b"1e-05", b"-0.5", b"9007199254740993", b"1.7e308"],
)
def test_a_number_that_is_no_json_is_a_bad_line_and_others_are_what_they_are(number, blank):
    note, line = b"v1., :+1 :01", b'{"note":"%b","global_step":%d,"loss":%b%b}'
    for usual in (b"7", b"0.5"):
        lines = [line % (note[:3], step, blank, usual) for step in range(150)]
        lines[70] = line % (note[:3], 70, blank, number)
        both(lines)
        both([each.replace(note[:3], note) for each in lines])


def test_names_and_values_that_change_places_are_a_bad_line():
    lines = steps(150)
    lines[70] = lines[70].replace(b'"event":"step","elapsed"', b'"event","step":"elapsed"')
    both(lines)


def test_random_lines():
    dice = random.Random(4)
    values = [1, 2.5, -1e-7, 10**17, True, None, "text", "a,b", "a:b", [1], {"a": 1}]
    for _ in range(40):
        shapes = [
            {
                name: dice.choice(values)
                for name in dice.sample(["a", "b", "c", "d", "epoch"], dice.randint(1, 4))
            }
            for _ in range(3)
        ]
        lines = []
        while len(lines) < 300:
            shape = dice.choice(shapes)
            for _ in range(dice.choice([1, 5, 40, 150])):
                numbers = {n: dice.gauss(0.0, 1.0) if type(v) is float else v for n, v in shape.items()}
                lines.append(orjson.dumps(numbers))
            lines.append(dice.choice([b"", b"{", b"null", b'{"a":Infinity}']))
        both(lines)


def test_a_small_file_does_not_load_pyarrow(monkeypatch):
    monkeypatch.delitem(alike_lines.sys.modules, "pyarrow.csv")

    assert runs_in(block_of(steps(200)))[0].runs[0].arrays is None
