"""Every query of the Grafana dashboards runs, with its macros expanded as the data source does, and is right."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace

import pytest

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import append, id_of, make_run, ship, write
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest

DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in (ROOT / "config" / "grafana").glob("*.json")
}
HOSTILE = "it's \\' OR 1=1 --"
FIRST, LAST = 1_789_990_000, 2_000_000_000
ALL = "$__all"


def queries(name):
    """Return the query of each variable and panel of a dashboard."""
    found = {}
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            found[variable["name"]] = variable["query"]
    for panel in DASHBOARDS[name]["panels"]:
        (target,) = panel["targets"]
        found[panel["title"]] = target["rawSql"]
    return found


def expanded(sql, now, **variables):
    """Return `sql` as Grafana and its ClickHouse data source send it, for the engine's time `now`."""

    def when_not_all(found):
        name = re.fullmatch(r".*, \$(\w+)", found[1])[1]
        return "1=1" if variables[name] == ALL else found[1].rpartition(", ")[0]

    sql = re.sub(r"\$__conditionalAll\(((?:[^()]|\([^()]*\))*)\)", when_not_all, sql)
    for name, value in variables.items():
        sql = sql.replace(f"${{{name}:raw}}", value)
    for macro, before, after in (
        ("timeFilter", f"toDateTime({FIRST})", f"toDateTime({LAST})"),
        ("dateFilter", "toDate('2026-09-01')", "toDate('2033-05-18')"),
    ):
        sql = re.sub(
            rf"\$__{macro}\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)",
            rf"\1 >= {before} AND \1 <= {after}",
            sql,
        )
    sql = sql.replace("$__interval_s", "60").replace("now()", f"toDateTime({now})")
    assert "$" not in sql, sql
    return sql


def hexed(text):
    return text.encode().hex().upper()


@pytest.fixture
def ask(engine):
    connection = Engine(engine.address())

    def run(sql, **variables):
        # The time at which the last run was reported: however slow this machine is, a live run is live.
        now = connection.rows("SELECT max(toUInt32(received)) FROM runs")[0][0]
        answer = connection.query(f"{expanded(sql, now, **variables)} FORMAT JSONCompact")
        return json.loads(answer)["data"]

    yield run
    connection.close()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_no_fixed_data_source_and_no_quoted_name(name):
    board = DASHBOARDS[name]
    assert board["uid"].startswith("telemetry-")
    assert board["templating"]["list"][0]["type"] == "datasource"
    places = [panel["gridPos"] for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
    for sql in queries(name).values():
        # Names reach SQL as hexadecimal digits: Grafana's own quoting leaves backslashes alone, which ClickHouse reads.
        assert set(re.findall(r"\$\{\w+(?::\w+)?\}", sql)) <= {
            "${project:raw}",
            "${run:raw}",
            "${metric:raw}",
        }
        for name_of in ("project", "run", "metric"):
            assert sql.count(f"${{{name_of}:raw}}") == sql.count(f"'${{{name_of}:raw}}'")


def test_every_query_of_the_dashboards_is_right(engine, ask, logs):
    project = f"{HOSTILE} {os.urandom(4).hex()}"
    team = {"project": hexed(project)}
    live = make_run(logs, "live", 10, project=project)
    write(live, b'{"event":"error","time":1790000011.0,"seq":11,"session":1,"error":"out of memory"}\n')
    write(
        live, b'{"event":"step","time":1790000012.0,"seq":12,"session":1,"global_step":10,"train_loss":NaN}\n'
    )
    append(live, range(5), rank=1, **{HOSTILE: 7.0})
    failed = make_run(logs, "failed", 3, project=project)
    for folder, status in ((live, "running"), (failed, "failed")):
        manifest = read_manifest(folder)
        now = time.time()
        manifest = manifest.with_latest(status=status, pid=os.getpid())
        if status == "running":
            manifest = replace(manifest, heartbeat=Heartbeat(time=now, seq=12, global_step=10))
        write_manifest(folder, manifest)
    shipper = ship(engine, logs, node=f"node-{project[-8:]}")
    double_rows(engine, id_of(live))
    run = {"run": hexed(id_of(live)), "metric": hexed("train_loss"), **team}
    fleet, one = queries("telemetry_fleet"), queries("telemetry_run")

    for name, sql in {**fleet, **one}.items():
        assert isinstance(ask(sql, **{**run, "project": ALL}), list), name

    assert [hexed(project), project] in ask(fleet["project"])
    assert ask(fleet["Live"], **team) in ([["1"]], [[1]])
    assert [float(value) for (value,) in ask(fleet["Steps done by live runs"], **team)] == [10.0]
    assert [int(value) for (value,) in ask(fleet["Failed or lost"], **team)] == [1]
    assert [row[:2] for row in ask(fleet["Live runs"], **team)] == [["live", project]]
    assert [row[:3] for row in ask(fleet["Failures, newest first"], **team)] == [
        ["failed", project, "failed"]
    ]
    assert [int(row[1]) for row in ask(fleet["Runs by the day they were created"], **team)] == [2]
    assert shipper.node in [row[0] for row in ask(fleet["Shippers"])]

    names = dict(ask(one["run"], **team))
    assert names[hexed(id_of(live))] == f"live ({id_of(live)[:8]})"
    assert next(text for _, text in ask(one["metric"], **run)) == "train_loss"
    assert hexed(HOSTILE) in [value for value, _ in ask(one["metric"], **run)]
    assert ask(one["Status"], **run)[0][0] in ("running", "stalled")
    assert [[int(number)] for (number,) in (*ask(one["Ranks"], **run), *ask(one["Errors"], **run))] == [
        [2],
        [1],
    ]
    by_step = [[float(cell) for cell in row] for row in ask(one["Metric by step"], **run)]
    assert by_step == [[float(step), *[1.0 / (step + 1)] * 3] for step in range(10)]
    # Twelve seconds, in parts of a minute by the clock.
    by_time = ask(one["Metric by time"], **run)
    assert max(row[2] for row in by_time) == 1.0
    metrics = {row[0]: row[1:] for row in ask(one["Metrics"], **run)}
    assert [int(metrics["train_loss"][0]), int(metrics["train_loss"][1])] == [11, 1]
    assert float(metrics["train_loss"][3]) == pytest.approx(0.1)
    ranks = ask(one["Ranks, slowest or highest first"], **run)
    assert [[int(row[0]), int(row[1])] for row in ranks] == [[1, 5], [0, 10]]
    assert ask(one["Ranks, slowest or highest first"], **{**run, "metric": hexed(HOSTILE)})[0][2] == 7.0
    (event,) = ask(one["Errors, findings and changes"], **run)
    assert event[1] == "error"
    assert "out of memory" in event[3]


def double_rows(engine, run_id):
    """Insert every row of a run again, as a shipper that was killed does."""
    connection = Engine(engine.address())
    for table in ("records", "points", "commits"):
        connection.query(f"INSERT INTO {table} SELECT * FROM {table} WHERE run_id = '{run_id}'")
    connection.close()
