"""Rows of the engine that are not what was shipped: refused, found and repaired, and no page breaks."""

from __future__ import annotations

import pytest

from tests.fleet.shipped_runs import append, id_of, make_run, pull, record_bytes, ship
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

PATIENCE_S = 120.0


def put(engine, table, **values):
    connection = Engine(engine.address())
    texts = [quote(value) if isinstance(value, str) else str(value) for value in values.values()]
    connection.query(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(texts)})")
    connection.query(f"OPTIMIZE TABLE {table} FINAL")


def day_of(engine, run_id):
    return Engine(engine.address()).rows(
        f"SELECT DISTINCT toString(created) FROM records WHERE run_id = {quote(run_id)}"
    )[0][0]


@pytest.mark.parametrize(
    "replaced", [lambda line: line.replace("1.0", "9.0"), lambda line: "{}\n".ljust(len(line))]
)
def test_wrong_lines_are_refused_by_pull_and_found_and_repaired_by_verify(engine, logs, tmp_path, replaced):
    folder = make_run(logs, "changed")
    run_id = id_of(folder)
    shipper = ship(engine, logs)
    line = record_bytes(folder)["metrics.jsonl"].split(b"\n")[0].decode()
    common = {"run_id": run_id, "rank": 0, "gen": 1, "at": 0, "created": day_of(engine, run_id)}
    put(engine, "records", **common, next=len(line) + 1, event="step", line=replaced(line))
    put(engine, "points", **common, metric="train_loss", value=9.0)

    refused = pull(Engine(engine.address()), run_id, tmp_path / "refused")
    assert "differs from the one that was shipped" in refused.said[0]
    assert "`telemetry ship --verify` on the node repairs it" in refused.said[0]
    assert not (refused.folder / "metrics.jsonl").exists()
    repaired = shipper.verify()

    assert len(repaired) == 1
    assert "the engine lacked a part of it, and it is sent again" in repaired[0]
    shipper.ship_all()
    assert record_bytes(pull(Engine(engine.address()), run_id, tmp_path).folder) == record_bytes(folder)


def test_values_that_were_exchanged_are_found(engine, logs):
    run_id = id_of(make_run(logs, "exchanged"))
    shipper = ship(engine, logs)
    ask = f"SELECT at, value FROM points FINAL WHERE run_id = {quote(run_id)} AND metric = 'train_loss' ORDER BY at"
    before = Engine(engine.address()).rows(ask)
    (one, first), (other, second), *_ = before
    assert first != second
    for at, value in ((one, second), (other, first)):
        row = {"run_id": run_id, "rank": 0, "gen": 1, "at": at, "created": day_of(engine, run_id)}
        put(engine, "points", **row, metric="train_loss", value=value)

    (repaired,) = shipper.verify()
    assert "it is sent again" in repaired
    assert Engine(engine.address()).rows(ask) == before


@pytest.mark.parametrize(
    ("wrong", "line"),
    [("other kind", 1), ("no length", 1), ("endless", 2), ("not a record", 2), ("two lines", 1)],
)
def test_a_wrong_line_takes_no_page_of_the_run_away(engine, logs, line, wrong):
    folder = make_run(logs, f"{wrong} {line}", 0)
    for step in range(3):
        append(folder, [step], **{f"only_{step}": 1.0})
    run_id = id_of(folder)
    ship(engine, logs)
    real = record_bytes(folder)["metrics.jsonl"].splitlines(keepends=True)
    at = sum(map(len, real[:line]))
    after = at + len(real[line])
    row = {"run_id": run_id, "rank": 0, "gen": 1, "at": at, "created": day_of(engine, run_id), "line": "{}"}
    row |= {
        "other kind": {"next": after, "event": "start"},
        "no length": {"next": at, "event": "step"},
        "endless": {"next": 2**64 - 1, "event": "step"},
        "not a record": {"next": after, "event": ""},
        "two lines": {"next": after, "event": "step", "line": "{}\n".ljust(after - at - 1)},
    }[wrong]
    put(engine, "records", **row)
    store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S)

    for records in (3, 4):
        health = store.refresh(run_id, wait_s=PATIENCE_S)
        assert health.records <= records
        for metric in [info.name for info in store.metrics(run_id)]:
            assert sum(len(part.x) for part in store.series(run_id, metric).segments) <= records
        store.meta(run_id)
        store.events(run_id)
        store.spans(run_id)
        store.table(run_id)
        append(folder, [5])
        ship(engine, logs)
