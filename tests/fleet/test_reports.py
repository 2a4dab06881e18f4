"""What is sent and asked about runs and shippers: no more than is needed, whatever clocks and folders say."""

from __future__ import annotations

import os

from tests.fleet.shipped_runs import append, id_of, make_run, newest_bytes, record_bytes, ship, write
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.fleet.run_rows import reports_of_shippers
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore


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


def test_a_shipper_whose_clock_was_set_back_is_not_silent(engine, ask, logs):
    node = f"node-{id_of(make_run(logs, 'run', 2))}"
    ask.query(
        "INSERT INTO shippers (node, files, last_error, received) VALUES "
        f"({quote(node)}, 7, 'of yesterday', now() - 86400)"
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
