"""A later version of the tables, beside which shippers of this version continue, or are refused and lose nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.fleet.engines import DATABASE
from tests.fleet.shipped_runs import append, engine_bytes, id_of, make_run, record_bytes
from tests.lengths import is_long
from toolkit.cli.main import main
from toolkit.fleet import schema
from toolkit.fleet.address import address_of
from toolkit.fleet.engine import Engine, EngineError
from toolkit.fleet.schema import require_tables, set_up
from toolkit.fleet.shipper import Shipper


@pytest.fixture
def database(engine):
    """An empty database of its own."""
    name = f"{DATABASE}_{os.urandom(4).hex()}"
    yield name
    connection = Engine(engine.address("default"))
    connection.query(f"DROP DATABASE IF EXISTS {name}")
    connection.close()


@pytest.fixture
def version_2(monkeypatch):
    """Let `set_up` make version 2: each record has a host too."""

    def use():
        monkeypatch.setattr(schema, "VERSION", 2)
        monkeypatch.setattr(schema, "INBOX", "inbox_2")
        monkeypatch.setattr(schema, "INBOX_COLUMNS", (*schema.INBOX_COLUMNS, ("host", "String")))
        records, *others = schema._TABLES
        more = replace(records, columns=f"{records.columns}, host {{LC}} CODEC(ZSTD(1))")
        monkeypatch.setattr(schema, "_TABLES", (more, *others))
        (name, select), *views = schema._VIEWS
        monkeypatch.setattr(
            schema, "_VIEWS", ((name, select.replace("created\n", "created, host\n")), *views)
        )

    return use


def test_shippers_of_this_version_continue_beside_a_later_one_or_lose_nothing(
    engine, database, logs, version_2, monkeypatch
):
    if engine.name == "18.16" and not is_long():
        pytest.skip("in make faults")
    address = engine.address(database)
    set_up(address, engine.cluster)
    folder = make_run(logs, "old", 5)
    shipper = Shipper(Engine(address), [logs])
    shipper.start()
    shipper.ship_all()

    version_2()
    said = set_up(address, engine.cluster)
    append(folder, range(5, 9))
    shipper.runs[folder].next_look = 0.0
    ask = Engine(address)
    if engine.name == "18.16":
        # This engine refuses what lacks a column: the shipper waits, and a program of version 2 sends it.
        with pytest.raises(EngineError):
            shipper.ship_all()
    else:
        shipper.ship_all()
        assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}
    ask.query(
        "INSERT INTO inbox_2 (run_id, rank, gen, at, next, line, created, host, names, ns, bads, vals) VALUES "
        "('new', 0, 1, 0, 3, '{}', '2026-11-01', 'node7', ['a'], [1], [0], [0.5])",
        settings={"insert_distributed_sync": 1},
    )
    again = set_up(address, engine.cluster)

    assert all("upgraded from version 1 to 2" in line for line in said)
    assert all("tables of version 2 checked" in line for line in again)
    assert ask.rows("SELECT run_id, host, line FROM records WHERE host != ''", *["String"] * 3) == [
        ("new", "node7", "{}")
    ]
    assert ask.rows("SELECT run_id, value FROM points WHERE run_id = 'new'", "String", "Float64") == [
        ("new", 0.5)
    ]
    assert require_tables(ask).version == 2

    monkeypatch.undo()
    if engine.name == "18.16":
        with pytest.raises(EngineError, match="have version 2 and this program writes version 1: upgrade"):
            require_tables(ask)
    else:
        assert require_tables(ask).oldest == 1
        later = Shipper(Engine(address), [logs])
        later.start()
        append(folder, range(9, 12))
        later.ship_all()
        assert engine_bytes(ask, id_of(folder)) == {(0, 1): record_bytes(folder)["metrics.jsonl"]}


def test_tables_of_an_earlier_version_and_of_another_layout_are_refused_in_one_sentence(
    engine, database, logs, version_2, capsys
):
    address = engine.address(database)
    set_up(address, engine.cluster)
    port = address.hosts[0][1]
    url = f"clickhouse://127.0.0.1:{port}/{database}"
    cases = [(["--replicas"], "replicas are hosts of a cluster: add --cluster NAME")]
    if engine.cluster:
        cases += [
            (
                ["--cluster", engine.cluster, "--replicas"],
                "has no macro shard and no macro replica; see <macros>",
            ),
            ([], "are on the cluster fleet; only a new database can be different"),
        ]
    for more, said in cases:
        command = ["ship", "--set-up", "--to", url, *more]
        assert main(command) == 2, command
        out, err = capsys.readouterr()
        assert said in err, command
        assert (out, err.count("\n")) == ("", 1)

    version_2()
    with pytest.raises(EngineError, match="have version 1 and this program writes version 2: run `telemetry"):
        require_tables(Engine(address_of(url)))
