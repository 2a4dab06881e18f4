"""The printed grants are enough for what each user does, and not for more: on 26.9, whose only user gets them."""

from __future__ import annotations

import re

import pytest

from tests.fleet.engines import Embedded, NoEngine
from tests.fleet.requests_to_runs import Node, make_live_run
from tests.fleet.shipped_runs import append, id_of, make_run, record_bytes, ship, step_line, write
from toolkit.fleet.engine import Engine, EngineError, RefusedError
from toolkit.fleet.lag import Lag, lags_of
from toolkit.fleet.object_store import FolderStore
from toolkit.fleet.objects import ObjectShipper
from toolkit.fleet.pull import pull
from toolkit.fleet.schema import grants, require_tables, set_up

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
    engine.start()
    try:
        set_up(engine.address())
        ship(engine, logs)
    finally:
        engine.stop()
    return place, logs


@pytest.fixture
def engine_as(filled, tmp_path):
    started = []

    def start(user, filters=""):
        engine = Embedded(filled[0], tmp_path / "config.xml")
        lines = re.findall(
            rf"^GRANT (.*) TO (?:.*, )?telemetry_{user}(?:,.*)?;$", grants("telemetry", None), re.MULTILINE
        )
        if user == "ship":
            # What the views need: on a server they have the rights of the administrator who made them.
            lines += ["SELECT ON telemetry.inbox_1", "INSERT ON telemetry.records"]
            lines += ["INSERT ON telemetry.points", "INSERT ON telemetry.metrics"]
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
    engine = engine_as("ship")
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
    assert deliveries == [(id_of(asked), "")]
    _refuses(
        connection,
        *FORBIDDEN,
        "SELECT manifest FROM telemetry.runs",
        "SELECT labels FROM telemetry.labels",
        "INSERT INTO telemetry.requests (run_id) VALUES ('x')",
    )


def test_the_page_reads_everything_and_writes_labels_and_requests(engine_as):
    connection = Engine(engine_as("page").address())
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


def test_a_reader_pulls_and_writes_nothing(filled, engine_as, tmp_path):
    connection = Engine(engine_as("reader").address())
    require_tables(connection)
    folder = filled[1] / "of-y"

    assert record_bytes(pull(connection, id_of(folder), tmp_path).folder) == record_bytes(folder)
    _refuses(
        connection,
        *FORBIDDEN,
        "INSERT INTO telemetry.labels (run_id) VALUES ('x')",
        "INSERT INTO telemetry.inbox_1 (run_id, line) VALUES ('x', 'y')",
    )


def test_a_team_sees_the_runs_of_its_project_only(filled, engine_as, tmp_path):
    policies = re.findall(
        r"^CREATE ROW POLICY .* ON telemetry\.(\w+) USING (.*) TO team_x;$",
        grants("telemetry", None),
        re.MULTILINE,
    )
    # On a server these are statements; the only user of an embedded engine has them in its configuration.
    filters = "".join(f"<{table}><filter>{text}</filter></{table}>" for table, text in policies)
    engine = engine_as("reader", f"<databases><telemetry>{filters}</telemetry></databases>")
    connection = Engine(engine.address())
    mine, other = id_of(filled[1] / "of-x"), id_of(filled[1] / "of-y")

    assert {table for table, _ in policies} >= {"records", "points", "metrics", "runs", "labels", "commits"}
    for table in ("records", "points", "metrics", "runs", "commits"):
        assert connection.rows(f"SELECT DISTINCT run_id FROM {table}", "String") == [(mine,)], table
    with pytest.raises(Exception, match="the engine has no run"):
        pull(connection, other, tmp_path)


def _refuses(connection, *statements):
    for statement in statements:
        with pytest.raises(EngineError) as refused:
            connection.query(statement)
        assert isinstance(refused.value, RefusedError), f"{statement}: {refused.value}"
