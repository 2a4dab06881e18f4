"""What a chart gets from /curves: the numbers that were logged, in the agreed form, or a sentence."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
import struct
from urllib.parse import urlencode

import numpy as np
import pytest
from starlette.requests import Request

from dashboard import session
from dashboard.components.curve_chart import CurveSpec, picture_of
from dashboard.curve_route import answer_csv, answer_curves
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runs.columns import run_log
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.store import Health


def get(query, answer=answer_curves):
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/curves",
        "query_string": query.encode(),
        "headers": [],
    }

    async def answered():
        # A client that waits for the answer.
        return await answer(Request(scope, asyncio.Event().wait))

    return asyncio.run(answered())


def ask(*curves, x="step"):
    answer = get(urlencode({"x": x, "c": json.dumps(curves)}))
    assert answer.status_code == 200, answer.body
    assert answer.headers["cache-control"] == "no-store"
    return decoded(answer.body)


def decoded(data):
    """Read an answer as the browser does, and check that every array is where it can be used without a copy."""
    length, zero = struct.unpack_from("<II", data)
    header = json.loads(data[8 : 8 + length])
    assert (zero, length % 8) == (0, 0)
    end = 8 + length
    for curve in header["curves"]:
        for block in curve["blocks"]:
            at, count, level = 8 + length + block["at"], block["count"], block["level"]
            assert at == end
            kinds = {"x": "f8"} | ({"y": block["type"]} if level == 0 else {})
            if level:
                kinds |= dict.fromkeys(("low", "high", "mean"), block["type"])
            kinds |= {"weight": "f4"} | ({"bad": "u4"} if level else {})
            kinds |= {"time": "f8"} if block["piece"] in curve.get("timed", ()) else {}
            for name, kind in kinds.items():
                block[name] = np.frombuffer(data, f"<{kind}", count, at)
                at += -(-block[name].nbytes // 8) * 8
            end = at
    assert end == len(data)
    return header["curves"]


def test_a_curve_comes_with_its_values_and_then_with_what_is_new(logs):
    folder = write_run(logs, "a run?&", curves={"train_loss": lambda step: 1 / (step + 1)}, status="running")

    [first] = ask(["a run?&", "train_loss", 0, {"fit": 800}, 0])
    append(folder, [step_record(100, train_loss=7.0)])
    [more] = ask(["a run?&", "train_loss", 0, {"after": [100], "version": first["version"]}, 0])
    [none] = ask(["a run?&", "train_loss", 0, {"after": [101], "version": first["version"]}, 0])

    [block] = first["blocks"]
    assert (block["level"], block["first"], block["count"], block["type"]) == (0, 0, 100, "f8")
    assert block["y"].tolist() == [1 / (step + 1) for step in range(100)]
    assert block["x"].tolist() == [float(step) for step in range(100)]
    assert first["pieces"] == [[1, 0, 100, 0.0, 99.0]]
    assert (first["low"], first["high"], first["whole"], first["problem"]) == (0.01, 1.0, 1.0, None)
    assert (first["non_finite"], first["ranges"]) == ([], [])
    assert more["version"] == first["version"]
    assert [(block["first"], block["y"].tolist()) for block in more["blocks"]] == [(100, [7.0])]
    assert (none["blocks"], none["pieces"][0][2]) == ([], 101)


def test_several_curves_of_several_runs_come_in_one_answer_with_their_problems(logs):
    write_run(logs, "one", curves={"train_loss": lambda step: step}, sessions=[range(3000)])
    write_run(logs, "two", curves={"train_loss": lambda _: 1.0}, ranks={1: {"train_loss": lambda _: 2.0}})

    one, two, other, gone, no_rank, unlogged = ask(
        ["one", "train_loss", 0, {"fit": 800}],
        ["two", "train_loss", 0, {"fit": 10}],
        ["two", "train_loss", 1, {"fit": 800}],
        ["nowhere", "train_loss", 0, {"fit": 800}],
        ["two", "train_loss", 9, {"fit": 800}],
        ["two", "nope", 0, {"fit": 800}],
    )

    assert [(block["level"], block["count"]) for block in one["blocks"]] == [(1, 750)]
    assert one["blocks"][0]["high"].tolist() == [4.0 * i + 3 for i in range(750)]
    assert one["blocks"][0]["type"] == "f4"
    assert [(block["level"], block["weight"].sum()) for block in two["blocks"]] == [(2, 100.0)]
    assert set(other["blocks"][0]["y"].tolist()) == {2.0}
    assert gone["problem"] == "there is no run 'nowhere'"
    assert no_rank["problem"] == "the run has no records of rank 9"
    assert (unlogged["pieces"], unlogged["problem"], unlogged["low"]) == ([], None, None)


def test_numbers_beyond_json_and_single_floats_arrive_as_they_were_logged(logs):
    values = [1e308, -1e308, math.nan, math.inf, -math.inf, 1e-320, 2.0**60 + 2.0**20, 0.1] * 2
    name = 'l"<script>\u2028\U0001f600/ü'
    write_run(logs, "r", [step_record(step, **{name: value}) for step, value in enumerate(values)])

    [exact] = ask(["r", name, 0, {"fit": 800}])
    [coarse] = ask(["r", name, 0, {"tiles": [[0, 1, 0], [0, 2, 0]], "version": exact["version"]}])

    np.testing.assert_array_equal(exact["blocks"][0]["y"], values)
    assert (exact["metric"], exact["low"], exact["high"]) == (name, -1e308, 1e308)
    assert [one[0] for one in exact["non_finite"]] == ["NaN", "Infinity", "-Infinity"] * 2
    assert exact["ranges"][:3] == [
        ["NaN", 2.0, 4.0, 1],
        ["Infinity", 2.0, 4.0, 1],
        ["-Infinity", 2.0, 4.0, 1],
    ]
    one, two = coarse["blocks"]
    assert (one["type"], one["high"].max(), one["bad"].tolist()) == ("f8", 1e308, [2, 1, 2, 1])
    assert np.isfinite(two["mean"]).all()
    assert "non_finite" not in coarse


def test_a_log_that_is_still_being_read_is_answered_in_part(logs, monkeypatch):
    write_run(logs, "r", curves={"train_loss": lambda step: step}, sessions=[range(1000)])
    partly = Health(bytes_read=1, bytes_pending=3)
    monkeypatch.setattr(RunLog, "refresh", lambda self, _: (self._read_block() and partly) or partly)
    monkeypatch.setattr(run_log, "_BLOCK_BYTES", 20_000)

    [first] = ask(["r", "train_loss", 0, {"fit": 10_000}])
    [second] = ask(["r", "train_loss", 0, {"fit": 10_000}])

    assert first["whole"] == 0.25
    assert 0 < first["pieces"][0][2] < second["pieces"][0][2] <= 1000
    assert first["version"] == second["version"]


def test_a_replaced_log_and_a_resume_in_the_middle_change_the_version(logs):
    folder = write_run(logs, "r", curves={"train_loss": lambda step: step}, status="running")
    [first] = ask(["r", "train_loss", 0, {"fit": 800}])
    append(folder, [step_record(40 + i, session=2, train_loss=5.0) for i in range(3)])

    [resumed] = ask(["r", "train_loss", 0, {"after": [100], "version": first["version"]}])
    (folder / METRICS_JSONL).unlink()
    append(folder, [step_record(i, train_loss=9.0) for i in range(5)])
    [replaced] = ask(["r", "train_loss", 0, {"after": [40, 60, 3], "version": resumed["version"]}])

    assert resumed["pieces"] == [[1, 0, 40, 0.0, 39.0], [1, 1, 60, 40.0, 99.0], [2, 0, 3, 40.0, 42.0]]
    assert [block["count"] for block in resumed["blocks"]] == [40, 60, 3]
    assert replaced["blocks"][0]["y"].tolist() == [9.0] * 5
    assert len({first["version"], resumed["version"], replaced["version"]}) == 3


def test_an_x_axis_is_any_of_the_agreed_ones_or_a_metric(logs):
    write_run(logs, "r", curves={"train_loss": lambda step: step, "tokens": lambda step: 10.0 * step})

    places = {
        x: ask(["r", "train_loss", 0, {"fit": 800}], x=x)[0]["pieces"][0][4]
        for x in ("step", "time", "elapsed", "epoch", "progress", "metric:tokens", "metric:nope")
    }

    assert places["step"] == 99.0
    assert places["metric:tokens"] == 990.0
    assert places["progress"] == 100.0
    assert places["metric:nope"] is None
    assert places["time"] - places["elapsed"] > 1e9


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({}, "c is ''; it must be JSON"),
        ({"c": "["}, "it must be JSON"),
        ({"c": "[]"}, "1 to 64 curves"),
        ({"c": "{}"}, "1 to 64 curves"),
        ({"c": json.dumps([["r", "m", 0, {"fit": 1}]] * 65)}, "1 to 64 curves"),
        ({"c": "[[1]]"}, "curve 0 of c is [1]; it must be [run, metric, rank, ask, times]"),
        ({"c": '[["r", 1, 0, {"fit": 1}]]'}, "must be texts"),
        ({"c": '[["r", "m", -1, {"fit": 1}]]'}, "the rank of curve 0 is -1"),
        ({"c": '[["r", "m", 1e9, {"fit": 1}]]'}, "a whole number from 0 on"),
        ({"c": '[["r", "m", true, {"fit": 1}]]'}, "the rank of curve 0 is True"),
        ({"c": '[["r", "m", 0, {"fit": 1}, 2]]'}, "times of curve 0 is 2; it must be 0 or 1"),
        ({"c": '[["r", "m", 0, {}]]'}, "one of fit, tiles and after"),
        ({"c": '[["r", "m", 0, {"fit": 1, "after": []}]]'}, "one of fit, tiles and after"),
        ({"c": '[["r", "m", 0, {"fit": 0}]]'}, "fit of curve 0 is 0; it must be 1 to 10000"),
        ({"c": '[["r", "m", 0, {"fit": 99999999999999999999999}]]'}, "it must be 1 to 10000"),
        ({"c": '[["r", "m", 0, {"after": [-1]}]]'}, "after of curve 0 is [-1]; it must be counts of points"),
        ({"c": '[["r", "m", 0, {"tiles": [[0, 0]]}]]'}, "must be [[piece, level, tile], ...]"),
        ({"c": '[["r", "m", 0, {"tiles": [[0, 17, 0]]}]]'}, "must be [[piece, level, tile], ...]"),
        ({"c": '[["r", "m", 0, {"tiles": [], "version": 3}]]'}, "version of curve 0 is 3"),
        ({"c": json.dumps([["r", "m", 0, {"tiles": [[0, 0, 0]] * 513}]])}, "more than 512 tiles"),
        ({"x": "weeks", "c": '[["r", "m", 0, {"fit": 1}]]'}, "x is 'weeks'; it must be one of step, time"),
        ({"x": "metric:", "c": '[["r", "m", 0, {"fit": 1}]]'}, "or metric:NAME"),
        ({"c": "[" * 5000}, "it must be JSON"),
    ],
)
def test_an_invalid_question_is_refused_in_a_sentence(logs, query, sentence):
    answer = get(urlencode(query))

    assert answer.status_code == 400
    assert sentence in answer.body.decode()
    assert len(answer.body) < 300


def test_huge_numbers_in_a_question_find_nothing(logs):
    write_run(logs, "r", curves={"train_loss": lambda step: step})
    [whole] = ask(["r", "train_loss", 0, {"fit": 800}])
    last = 2**53 - 1
    tiles = [[last, 0, 0], [0, 16, last], [0, 0, last], [0, 1, 5], [0, 2, last]]

    [found] = ask(["r", "train_loss", 0, {"tiles": tiles, "version": whole["version"]}])
    [beyond] = ask(["r", "train_loss", 0, {"after": [last], "version": whole["version"]}])
    [no_rank] = ask(["r", "train_loss", last, {"fit": 800}])

    assert found["blocks"] == []
    assert beyond["blocks"][0]["count"] == 100
    assert no_rank["problem"] == f"the run has no records of rank {last}"
    assert session.store().metrics("r")


def get_csv(*curves, **asked):
    named = json.dumps([[*curve, 0, {"fit": 1}] for curve in curves])
    return get(urlencode({"c": named, **asked}), answer_csv)


def test_a_csv_file_has_every_logged_value_of_the_window_and_no_formula(logs):
    values = np.random.default_rng(0).normal(size=3000).tolist()
    values[7] = math.nan
    write_run(
        logs,
        "=cmd()",
        curves={"train_loss": lambda step: values[step], "@lr": lambda _: 1e-30},
        sessions=[range(3000)],
    )

    answer = get_csv(["=cmd()", "train_loss"], ["=cmd()", "@lr"], **{"from": 5, "to": 2500})
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))

    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["cache-control"] == "no-store"
    loss = [row for row in rows if row["metric"] == "train_loss"]
    assert [int(row["step"]) for row in loss] == list(range(5, 2501))
    assert [float(row["value"]) for row in loss[3:]] == values[8:2501]
    assert loss[2]["value"] == "nan"
    assert {(row["run"], row["metric"]) for row in rows} == {("'=cmd()", "train_loss"), ("'=cmd()", "'@lr")}


def test_a_csv_file_has_any_axis_and_marks_what_a_later_session_repeated(logs):
    write_run(logs, "r", curves={"train_loss": lambda step: float(step)}, sessions=[range(10), range(6, 12)])

    rows = list(
        csv.DictReader(io.StringIO(get_csv(["r", "train_loss"], x="metric:train_loss").body.decode()))
    )

    assert sum(row["superseded"] == "1" for row in rows) == 4
    assert len(rows) == 16
    assert all(float(row["metric:train_loss"]) == float(row["value"]) for row in rows)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"from": "x"}, "from is 'x'; it must be a number"),
        ({"x": "width"}, "x is 'width'; it must be one of step"),
        ({}, "there is no run 'nowhere'"),
    ],
)
def test_a_csv_file_that_cannot_be_made_says_why(logs, asked, said):
    answer = get_csv(["nowhere", "train_loss"], **asked)

    assert answer.status_code == 400
    assert said in answer.body.decode()


def test_a_formula_that_grows_keeps_its_version_so_that_only_what_is_new_is_sent(logs):
    folder = write_run(logs, "r", curves={"train_loss": lambda step: step}, status="running")
    [first] = ask(["r", "= 2 * train_loss", 0, {"fit": 800}])
    append(folder, [step_record(100, train_loss=100.0)])
    [more] = ask(["r", "= 2 * train_loss", 0, {"after": [100], "version": first["version"]}])

    assert more["version"] == first["version"]
    assert [block["y"].tolist() for block in more["blocks"]] == [[200.0]]


def test_a_picture_in_place_of_a_chart_is_of_the_asked_rank(logs):
    write_run(logs, "two", curves={"loss": lambda _: 1.0}, ranks={1: {"loss": lambda _: 7777.0}})
    curves = tuple(CurveSpec(run="two", metric="loss", label=f"rank {rank}", rank=rank) for rank in (0, 1))
    session.store().refresh("two", wait_s=60, rank=1)

    assert "7,000" not in picture_of(session.store(), curves[:1], 260)
    assert "7,000" in picture_of(session.store(), curves[1:], 260)
