"""Values of another tool that belong together share a row, and each keeps its own step, time and name."""

from __future__ import annotations

import json
import math

import pytest

from tests.importers.reading import only_run
from toolkit.telemetry.importers.as_records import records_in
from toolkit.telemetry.importers.source import NO_STEP, Builder, run_info


def records(tmp_path, points):
    builder = Builder()
    for metric, step, time, value in points:
        builder.add(metric, step, time, value)
    return records_in(run_info("table", "1", "run", tmp_path, ["metrics.csv"]), builder.batch)


def test_a_measurement_without_a_step_keeps_its_own_time(tmp_path):
    points = [(name, NO_STEP, float(time), time * 10.0) for name in ("cpu", "gpu") for time in (1, 2, 3)]

    assert records(tmp_path, points) == [
        {"event": "step", "time": float(time), "session": 1, "cpu": time * 10.0, "gpu": time * 10.0}
        for time in (1, 2, 3)
    ]


def test_a_value_at_a_step_that_came_twice_belongs_to_the_nearest_in_time(tmp_path):
    # As TensorBoard has them: each value with the time of its own writing.
    losses = [("loss", 5, 100.0, 2.0), ("loss", 6, 110.0, 3.0), ("loss", 5, 200.0, 1.0)]

    found = records(tmp_path, [*losses, ("lr", 5, 200.004, 0.1)])

    assert [(one["global_step"], one["loss"], one.get("lr")) for one in found] == [
        (5, 2.0, None),
        (6, 3.0, None),
        (5, 1.0, 0.1),
    ]


def test_values_without_a_time_are_in_the_order_of_their_steps_among_those_with_one(tmp_path):
    points = [("lr", step, math.nan, step / 10) for step in range(1, 6)]

    found = records(tmp_path, [*points, ("loss", 2, 50.0, 1.0), ("loss", 4, 60.0, 0.5)])

    assert [(one["global_step"], one.get("time"), one["lr"], one.get("loss")) for one in found] == [
        (1, None, 0.1, None),
        (2, 50.0, 0.2, 1.0),
        (3, None, 0.3, None),
        (4, 60.0, 0.4, 0.5),
        (5, None, 0.5, None),
    ]


def test_a_log_whose_step_never_changes_has_a_row_for_each_time(tmp_path):
    times = [float(time) for time in range(20_000)]
    # Of other lengths, and so with other places.
    points = [("loss", 0, time, time) for time in times] + [("lr", 0, time, time) for time in times[1:]]

    found = records(tmp_path, points)

    assert [one["loss"] for one in found] == times
    assert [one.get("lr") for one in found] == [None, *times[1:]]


def test_a_metric_with_the_name_of_a_field_of_ours_does_not_change_where_a_record_is(tmp_path, capsys):
    pytest.importorskip("numpy")
    from toolkit.telemetry.cli.main import main
    from toolkit.telemetry.runs.sources.foreign_log import ForeignLog

    folder = tmp_path / "run" / "plots" / "metrics"
    folder.mkdir(parents=True)
    for name in ("loss", "session"):
        (folder / f"{name}.tsv").write_text(f"step\t{name}\n0\t7.0\n1\t8.0\n", "utf-8")
    log = ForeignLog(only_run(tmp_path / "run"))
    log.refresh(60.0)

    assert main(["tail", str(tmp_path / "run"), "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    downloaded = [json.loads(line) for piece in log.source.pieces() for line in piece.splitlines()]
    for found in (printed, downloaded):
        assert [(one["session"], one["x_session"], one["loss"]) for one in found] == [
            (1, 7.0, 7.0),
            (1, 8.0, 8.0),
        ]
    assert {info.name for info in log.metrics()} == {"loss", "session"}
