"""The printed grants are enough for what each user does, and not for more: on 26.9, whose only user gets them."""

from __future__ import annotations

import re

import pytest

from tests.fleet.engines import Embedded, NoEngine
from tests.fleet.requests_to_runs import Node, make_live_run
from tests.fleet.shipped_runs import append, id_of, make_run, record_bytes, ship, step_line, write
from tests.lengths import in_make_faults
from tests.runs.sources.store_answers import answers_of
from toolkit.fleet import schema
from toolkit.fleet.engine import Engine, EngineError, RefusedError
from toolkit.fleet.object_store import FolderStore
from toolkit.fleet.objects import ObjectShipper
from toolkit.fleet.pull import pull
from toolkit.fleet.schema import grants, require_tables, set_up
from toolkit.fleet.verify import Lag, lags_of
from toolkit.runfolder.labels import Labels, write_labels
from toolkit.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.runs.sources.local_store import LocalStore
from toolkit.runs.store import Refused, RunQuery, UnknownRun

PATIENCE_S = 120.0
_CONFIG = (
    "<clickhouse><users_config>{users}</users_config><default_profile>default</default_profile></clickhouse>"
)
_USERS = """<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default>
<password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
<grants>{grants}</grants>{filters}</default></users></clickhouse>
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """The folder of an engine with one run of two projects each, stopped, and the folder of the runs."""
    place = tmp_path_factory.mktemp("granted")
    try:
        engine = Embedded(place)
    except NoEngine as error:
        pytest.skip(str(error))
    logs = place / "logs"
    for project in ("x", "y"):
        make_run(logs, f"of-{project}", 10, project=project)
        rich = make_run(place / "rich", f"rich-{project}", 10, project=project)
        write(
            rich,
            b'{"event":"error","time":1790000011.0,"seq":11,"session":1,"error":"of %s"}\n'
            % project.encode(),
        )
        append(rich, range(3), rank=1)
        write_labels(rich, Labels(tags=(f"tag-{project}",), notes=f"notes of {project}"))
        make_run(place / "rich", f"gone-{project}", 10, project=project)
    engine.start()
    try:
        set_up(engine.address())
        ship(engine, logs, place / "rich")
        connection = Engine(engine.address())
        for project in ("x", "y"):
            connection.query(
                "INSERT INTO labels (project, run_id, version, deleted, created) VALUES "
                f"('{project}', '{id_of(place / 'rich' / f'gone-{project}')}', 1, 1, '2026-09-21')"
            )
            connection.query(
                "INSERT INTO requests (project, run_id, id, created) VALUES "
                f"('{project}', '{id_of(logs / f'of-{project}')}', '1', '2026-09-21')"
            )
            connection.query(
                "INSERT INTO deliveries (project, run_id, id, created) VALUES "
                f"('{project}', '{id_of(logs / f'of-{project}')}', 'of a test', '2026-09-21')"
            )
            connection.query(
                "INSERT INTO objects (project, run_id, path, created) VALUES "
                f"('{project}', '{id_of(logs / f'of-{project}')}', 'samples/1.png', '2026-09-21')"
            )
    finally:
        engine.stop()
    return place, logs


@pytest.fixture
def engine_as(filled, tmp_path):
    started = []

    def start(user, filters=""):
        engine = Embedded(filled[0], tmp_path / "config.xml")
        lines = re.findall(
            rf"^GRANT (.*) TO (?:.*, )?{user}(?:,.*)?;$", grants("telemetry", None), re.MULTILINE
        )
        if user == "telemetry_admin":
            # The front says USE for the database of each request, which a server does not.
            lines += ["SHOW DATABASES ON default.*"]
        queries = "".join(f"<query>GRANT {line}</query>" for line in lines)
        (tmp_path / "users.xml").write_text(_USERS.format(grants=queries, filters=filters))
        (tmp_path / "config.xml").write_text(_CONFIG.format(users=tmp_path / "users.xml"))
        engine.start()
        started.append(engine)
        return engine

    yield start
    for engine in started:
        engine.stop()


FORBIDDEN = (
    "DROP TABLE telemetry.records",
    "ALTER TABLE telemetry.records DELETE WHERE 1",
    "TRUNCATE TABLE telemetry.points",
    "CREATE TABLE telemetry.mine (a UInt8) ENGINE = Memory",
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')",
    "SELECT * FROM file('/etc/passwd', 'CSV', 'a String')",
    "SELECT * FROM remote('127.0.0.1:1', 'system.one')",
    "CREATE USER other",
)


def test_the_shipper_can_ship_verify_and_deliver_and_nothing_else(filled, engine_as, tmp_path):
    engine = engine_as("telemetry_ship")
    folder = filled[1] / "of-x"
    append(folder, range(10, 14))
    (folder / "a.png").write_bytes(b"image")
    write(folder, step_line(14).replace(b'"event":"step"', b'"event":"sample","path":"a.png"'))

    shipper = ship(engine, filled[1], objects=ObjectShipper(engine.address(), FolderStore(filled[0])))

    assert shipper.verify() == []
    assert shipper.totals.lines == 5
    assert (shipper.objects.totals.stored, shipper.objects.totals.errors) == (1, 0)
    connection = Engine(engine.address())
    assert [lag.bytes for lag in lags_of(connection, [filled[1]])] == [0, 0]
    assert len(list(Lag.shippers(connection))) == 1
    asked = make_live_run(tmp_path, "asked")
    node = Node(engine, tmp_path)
    assert node.said == []
    deliveries = connection.rows("SELECT run_id, state FROM telemetry.deliveries", "String", "String")
    assert (id_of(asked), "") in deliveries
    _refuses(
        connection,
        *FORBIDDEN,
        "SELECT manifest FROM telemetry.runs",
        "SELECT labels FROM telemetry.labels",
        "INSERT INTO telemetry.requests (run_id) VALUES ('x')",
    )


def test_the_page_reads_everything_and_writes_labels_and_requests(engine_as):
    connection = Engine(engine_as("telemetry_page").address())
    require_tables(connection)
    connection.query(
        "INSERT INTO labels (run_id, version, labels, created) VALUES ('x', 1, '', '2026-01-01')"
    )
    connection.query("INSERT INTO requests (run_id, id, created) VALUES ('x', '1', '2026-01-01')")

    _refuses(
        connection,
        *FORBIDDEN,
        "INSERT INTO telemetry.records (run_id, line) VALUES ('x', 'y')",
        "INSERT INTO telemetry.deliveries (run_id, id) VALUES ('x', '')",
    )


@in_make_faults
def test_the_administrator_makes_and_checks_tables_and_nothing_else(engine_as):
    engine = engine_as("telemetry_admin")

    assert "tables of version 2 checked" in set_up(engine.address())[0]
    connection = Engine(engine.address())
    connection.query("DROP TABLE telemetry.points")
    set_up(engine.address())
    assert connection.rows("SELECT count() FROM telemetry.points", "UInt64") == [(0,)]
    assert connection.rows("SELECT 1 FROM system.macros LIMIT 1", "UInt8") == []
    _refuses(
        connection,
        *(statement for statement in FORBIDDEN if "telemetry" not in statement),
        "CREATE DATABASE another",
        "CREATE TABLE default.mine (a UInt8) ENGINE = Memory",
    )


def test_a_reader_pulls_and_writes_nothing(filled, engine_as, tmp_path):
    connection = Engine(engine_as("telemetry_reader").address())
    require_tables(connection)
    folder = filled[1] / "of-y"

    assert record_bytes(pull(connection, id_of(folder), tmp_path).folder) == record_bytes(folder)
    _refuses(
        connection,
        *FORBIDDEN,
        "INSERT INTO telemetry.labels (run_id) VALUES ('x')",
        "INSERT INTO telemetry.records (run_id, line) VALUES ('x', 'y')",
    )


@pytest.fixture
def team_x(filled, engine_as):
    """An engine whose user is a team, the ids of all runs by name, and the tables with a policy."""
    policies = re.findall(
        r"^CREATE ROW POLICY .* ON telemetry\.(\w+) USING (.*) TO team_x;$",
        grants("telemetry", None),
        re.MULTILINE,
    )
    # On a server these are statements; the only user of an embedded engine has them in its configuration.
    filters = "".join(f"<{table}><filter>{text}</filter></{table}>" for table, text in policies)
    engine = engine_as("team_x", f"<databases><telemetry>{filters}</telemetry></databases>")
    ids = {path.name: id_of(path) for logs in (filled[1], filled[0] / "rich") for path in logs.iterdir()}
    return engine, ids, {table for table, _ in policies}


def test_a_team_reads_rows_of_its_project_only(team_x, tmp_path):
    engine, ids, limited = team_x
    connection = Engine(engine.address())
    tables = [table.name for table in schema._TABLES if "run_id" in table.columns]

    assert limited == set(tables)
    for table in tables:
        found = {run_id for (run_id,) in connection.rows(f"SELECT DISTINCT run_id FROM {table}", "String")}
        assert found, table
        assert found <= {run_id for name, run_id in ids.items() if name.endswith("-x")}, table
    with pytest.raises(Exception, match="the engine has no run"):
        pull(connection, ids["of-y"], tmp_path)
    _refuses(connection, "SELECT node FROM shippers", "INSERT INTO labels (run_id) VALUES ('')")
    store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S)
    assert {card.name for card in store.list_runs().cards} == {"of-x", "rich-x"}
    with pytest.raises(UnknownRun):
        store.meta(ids["rich-y"])


@in_make_faults
def test_every_page_of_a_team_shows_its_project_only(filled, team_x):
    engine, ids, _ = team_x
    local = LocalStore([filled[0] / "rich"], cache_dir=None)
    store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S)
    listed = store.list_runs()

    assert {card.name for card in listed.cards} == {"of-x", "rich-x"}
    assert (listed.projects, listed.tags) == (("x",), ("tag-x",))
    assert sum(listed.statuses.values()) == 2
    assert [item.name for item in store.trash()] == ["gone-x"]
    assert set(store.trends(ids.values())) == {ids["of-x"], ids["rich-x"], ids["gone-x"]}
    assert answers_of(store, ids["rich-x"]) == answers_of(local, "rich-x")
    assert [event["error"] for event in store.events(ids["rich-x"], ("error",))] == ["of x"]
    assert store.meta(ids["rich-x"]).labels.notes == "notes of x"
    assert set(store.series_of([*ids.values()], "train_loss")) == {ids["of-x"], ids["rich-x"]}
    assert store.state().feeds == ()
    _sees_nothing(store, ids["rich-y"])
    _refuses(Engine(engine.address()), *FORBIDDEN)

    found = store.list_runs(RunQuery(text="rich"))
    assert {card.name for card in found.cards} == {"rich-x"}
    assert store.list_runs(RunQuery(project="y")).cards == ()
    _sees_nothing(store, ids["rich-y"])
    _sees_nothing(store, "rich-y")


def _sees_nothing(store, key):
    for question in (
        lambda: store.card(key),
        lambda: store.meta(key),
        lambda: store.refresh(key),
        lambda: store.metrics(key),
        lambda: store.series(key, "train_loss"),
        lambda: store.events(key),
        lambda: store.count_events(key),
        lambda: store.ranks(key),
        lambda: store.rank_grid(key, "train_loss"),
        lambda: store.findings(key),
        lambda: list(store.record_lines(key)),
        lambda: store.label(key, Labels(notes="mine now")),
        lambda: store.delete(key),
    ):
        with pytest.raises(UnknownRun):
            question()
    with pytest.raises(Refused, match="no such run in the trash"):
        store.restore(key)


def test_the_policies_of_a_cluster_stay_on_their_shard():
    printed = grants("telemetry", "fleet")

    assert (
        "ON telemetry.commits_local USING run_id IN (SELECT run_id FROM telemetry.runs_local WHERE project = 'x')"
        in printed
    )
    assert "set <secret> in remote_servers" in printed


def _refuses(connection, *statements):
    for statement in statements:
        with pytest.raises(EngineError) as refused:
            connection.query(statement)
        assert isinstance(refused.value, RefusedError), f"{statement}: {refused.value}"
