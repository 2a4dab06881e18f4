"""What is sent and asked about runs and shippers: no more than is needed, whatever clocks and folders say."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from unittest import mock

from tests.fleet.shipped_runs import append, id_of, make_run, newest_bytes, record_bytes, ship, write
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.fleet.run_folders import read_run_folder
from toolkit.telemetry.fleet.run_rows import RunReport, reports_of_shippers, send, status_of
from toolkit.telemetry.fleet.shipping.watch import Totals
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore


class Taking:
    """Stands for an engine that takes everything."""

    def __init__(self):
        self.tables = []

    address = address_of("clickhouse://127.0.0.1/t")
    clock_ahead_s = None

    def insert_rows(self, table, types, rows):
        self.tables.append(table)


def test_a_lost_run_of_another_machine_is_reported_again_only_when_it_changes(logs):
    folder = make_run(logs, "elsewhere", 3)
    text = (folder / "run.json").read_text().replace('"finished"', '"running"')
    (folder / "run.json").write_text(text.replace('"host": "', '"host": "not-'))
    engine, report = Taking(), RunReport(is_known=True)

    def report_it():
        run = read_run_folder(folder)
        with mock.patch.object(time, "monotonic", return_value=1e9 * len(rounds)):
            send(engine, "node", [(report, run, 0, "")], all_runs=False)
        rounds.append(len(engine.tables))

    rounds: list[int] = []
    for _ in range(3):
        report_it()
    status = status_of(read_run_folder(folder))
    assert (status.name, status.sure) == ("lost", False)
    assert rounds == [1, 1, 1]
    write_manifest(folder, _with_heartbeat(read_manifest(folder)))
    report.has_changed = True
    report_it()

    assert rounds[-1] == 2
    assert report.is_running


def _with_heartbeat(manifest):
    return replace(manifest, heartbeat=Heartbeat(time=time.time(), seq=9, global_step=9))


def test_a_folder_that_does_not_say_which_run_it_has_is_named_and_not_shipped(engine, ask, logs):
    fine, broken, odd = (make_run(logs, name, 3) for name in ("fine", "broken", "odd"))
    (logs / "foreign").mkdir()
    append(logs / "foreign", range(3))
    text = (odd / "run.json").read_text()
    (odd / "run.json").write_text(text.replace(id_of(odd), "x" * 400_000))
    known = (broken / "run.json").read_text()
    (broken / "run.json").write_text("{")
    said = []
    shipper = ship(engine, logs, say=said.append)

    assert list(shipper.runs) == [fine]
    assert len(said) == 2
    assert all("it is not shipped: " in sentence for sentence in said), said

    (broken / "run.json").write_text(known)
    shipper.ship_all()

    assert newest_bytes(ask, id_of(broken)) == record_bytes(broken)["metrics.jsonl"]


def test_a_failure_that_is_over_is_not_reported_for_ever():
    totals = Totals(last_error="the engine was away", failed_at=time.monotonic())
    assert totals.recent_error == "the engine was away"

    totals.failed_at -= 3600.0

    assert totals.recent_error == ""


def test_a_shipper_whose_clock_was_set_back_is_not_silent(engine, ask, logs):
    node = f"node-{id_of(make_run(logs, 'run', 2))}"
    ask.query(
        "INSERT INTO shippers (node, started, files, last_error, received) VALUES "
        f"({quote(node)}, 9e9, 7, 'of yesterday', now() - 86400)"
    )

    ship(engine, logs, node=node)
    one = ship(engine, logs, node=node)
    one.sender.report(all_runs=True)

    (report,) = [report for report in reports_of_shippers(ask) if report.node == node]
    assert (report.files, report.behind, report.last_error) == (1, 0, "")
    assert report.age_s < 3600


def test_a_page_says_of_an_ended_run_that_not_all_of_it_is_shipped(engine, logs):
    folder = make_run(logs, "stuck", 3)
    write(folder, b"x" * 17 * 1024 * 1024)
    append(folder, [4])
    store = ClickHouseStore(engine.address(), patience_s=60.0)

    for is_stuck in (True, False):
        ship(engine, logs).sender.report(all_runs=True)
        store._runs.look_again()
        health = store.refresh(id_of(folder), wait_s=60.0)
        assert (health.behind_bytes > 17_000_000, health.lag_s is not None) == (is_stuck, is_stuck)
        os.truncate(folder / "metrics.jsonl", 500)
        write(folder, b"\n")
