"""What the users of a team may do: enough for their work, nothing else; on 26.9, whose only user gets the grants."""

from __future__ import annotations

import hashlib
import json
import re
import stat

import pytest

from tests.fleet.engines import Embedded, NoEngine
from tests.fleet.requests_to_runs import Node, make_live_run
from tests.fleet.shipped_runs import append, id_of, make_run, pull, record_bytes, ship, step_line, write
from tests.mirrors.messages.local_receivers import receiving
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet.engine import Engine, EngineError, RefusedError
from toolkit.telemetry.fleet.objects import ObjectShipper
from toolkit.telemetry.fleet.run_rows import reports_of_shippers
from toolkit.telemetry.fleet.schema import TABLES, VERSION, require_tables, set_up
from toolkit.telemetry.fleet.shipping.verify import lags_of
from toolkit.telemetry.fleet.stores import FolderStore
from toolkit.telemetry.fleet.teams import grants
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

PATIENCE_S = 120.0
OTHER = "telemetry_y"
_CONFIG = (
    "<clickhouse><users_config>{users}</users_config><default_profile>default</default_profile></clickhouse>"
)
_USER = """<default><password></password><networks><ip>::/0</ip></networks><profile>default</profile>
<quota>default</quota>{grants}</default>"""
_USERS = """<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users>{users}</users></clickhouse>"""


def write_config(folder, lines=()):
    """Return the configuration of an engine whose user has these rights, all without some."""
    queries = "".join(f"<query>{line}</query>" for line in lines)
    user = _USER.format(grants=f"<grants>{queries}</grants>" if lines else "")
    (folder / "users.xml").write_text(_USERS.format(users=user))
    (folder / "config.xml").write_text(_CONFIG.format(users=folder / "users.xml"))
    return folder / "config.xml"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """The folder of a stopped engine with a run of the teams x and y each, and the folder of the runs of x."""
    place = tmp_path_factory.mktemp("granted")
    try:
        engine = Embedded(place, write_config(place))
    except NoEngine as error:
        pytest.skip(str(error))
    for team in ("x", "y"):
        write_labels(make_run(place / team, f"of-{team}", 10), Labels(tags=(team,), notes=f"notes of {team}"))
    engine.start()
    try:
        for team, database in (("x", "telemetry"), ("y", OTHER)):
            set_up(engine.address(database))
            ship(engine.address(database), place / team)
    finally:
        engine.stop()
    return place, place / "x"


@pytest.fixture
def engine_as(filled, tmp_path):
    started = []

    def start(role):
        lines = [
            line.partition(" TO ")[0]
            for line in grants("telemetry", "x")
            if f"x_{role}" in line.partition(" TO ")[2].split(", ")
        ]
        engine = Embedded(filled[0], write_config(tmp_path, lines))
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
    # Of another team.
    *(f"SELECT * FROM {OTHER}.{table.name}" for table in TABLES),
    *(
        f"INSERT INTO {OTHER}.{table} (run_id) VALUES ('x')"
        for table in ("records", "commits", "labels", "requests")
    ),
)


def test_the_shipper_ships_verifies_and_delivers_in_its_own_database_alone(filled, engine_as, tmp_path):
    engine = engine_as("ship")
    folder = filled[1] / "of-x"
    append(folder, range(10, 14))
    (folder / "a.png").write_bytes(b"image")
    write(folder, step_line(14).replace(b'"event":"step"', b'"event":"sample","path":"a.png"'))

    shipper = ship(engine, filled[1], objects=ObjectShipper(FolderStore(filled[0], is_shared=True)))

    assert shipper.verify() == []
    assert shipper.totals.lines == 5
    assert (shipper.objects.totals.stored, shipper.objects.totals.errors) == (1, 0)
    connection = Engine(engine.address())
    assert [lag.bytes for lag in lags_of(connection, [filled[1]])] == [0]
    assert len(reports_of_shippers(connection)) == 1
    # A shipper that begins again has to ask for all of it.
    again = ship(engine, filled[1])
    assert (again.totals.lines, again.verify()) == (0, [])
    asked = make_live_run(tmp_path, "asked")
    node = Node(engine, tmp_path)
    assert node.said == []
    found = connection.rows("SELECT run_id FROM telemetry.runs WHERE control = 'yes'")
    assert (id_of(asked),) in found
    connection.query("INSERT INTO deliveries (run_id, id) VALUES ('x', '1')")
    # Requests come from pages alone.
    _refuses(connection, *FORBIDDEN, "INSERT INTO telemetry.requests (run_id, id) VALUES ('x', '1')")


def test_the_page_reads_everything_and_writes_labels_and_requests(filled, engine_as):
    engine = engine_as("page")
    connection = Engine(engine.address())
    require_tables(connection)
    store = ClickHouseStore(engine.address(), patience_s=PATIENCE_S)
    run_id = id_of(filled[1] / "of-x")
    assert "of-x" in {card.name for card in store.list_runs().cards}
    assert store.refresh(run_id, wait_s=PATIENCE_S).records >= 10
    store.label(run_id, Labels(notes="from a page"))
    connection.query("INSERT INTO requests (run_id, id, created) VALUES ('x', '1', '2026-01-01')")

    _refuses(connection, *FORBIDDEN, "INSERT INTO telemetry.records (run_id, line) VALUES ('x', 'y')")


def test_a_reader_pulls_and_writes_nothing(filled, engine_as, tmp_path):
    connection = Engine(engine_as("reader").address())
    require_tables(connection)
    folder = filled[1] / "of-x"

    pulled = record_bytes(pull(connection, id_of(folder), tmp_path).folder)["metrics.jsonl"]
    assert record_bytes(folder)["metrics.jsonl"].startswith(pulled)
    _refuses(
        connection,
        *FORBIDDEN,
        "INSERT INTO telemetry.labels (run_id) VALUES ('x')",
        "INSERT INTO telemetry.records (run_id, line) VALUES ('x', 'y')",
    )


def _refuses(connection, *statements):
    for statement in statements:
        answer = None
        try:
            answer = connection.query(statement)
        except EngineError as error:
            assert isinstance(error, RefusedError), f"{statement}: {error}"  # noqa: PT017
            assert "user default may not do this" in str(error)  # noqa: PT017
        assert answer is None, f"{statement}: {answer[:300]!r}"


def test_set_up_makes_a_team_whose_passwords_are_only_in_files(engine, tmp_path, capsys):
    folder = tmp_path / "secrets"
    arguments = ["ship", "--set-up", "--team", "lab", "--secrets", str(folder)]
    arguments += ["--to", f"clickhouse://127.0.0.1:{engine.port}/telemetry"]

    assert main([*arguments, "--json"]) == 1

    found = json.loads(capsys.readouterr().out)
    files = {path.name: path for path in folder.iterdir()}
    assert sorted(files) == [
        "fleet.toml",
        "lab_page.password",
        "lab_reader.password",
        "lab_ship.password",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    contents = {name: path.read_text() for name, path in files.items()}
    assert len(set(contents.values())) == 4
    # The embedded engine cannot store users: what an administrator has to run is printed.
    assert any("the users are not made: " in line for line in found["done"])
    connection = Engine(engine.address("telemetry_lab"))
    require_tables(connection)
    for statement in found["grants"]:
        connection.query(f"EXPLAIN AST {statement}")
        assert re.match(r"GRANT (SELECT|INSERT) ON telemetry_lab\.[a-z*]+ TO lab_|CREATE USER", statement)
    password = contents["lab_ship.password"].strip()
    digest = hashlib.sha256(password.encode()).hexdigest()
    assert (
        found["grants"][0] == f"CREATE USER IF NOT EXISTS lab_ship IDENTIFIED WITH sha256_hash BY '{digest}'"
    )

    assert main(arguments) == 1

    printed = capsys.readouterr()
    assert {name: path.read_text() for name, path in files.items()} == contents
    assert printed.out.count(" is kept\n") == 4
    assert f"{found['grants'][-1]};\n" in printed.out
    for text in contents.values():
        assert text.strip() not in printed.out + printed.err + json.dumps(found)


def test_users_that_exist_keep_their_passwords(tmp_path, capsys):
    """With an engine that answers as a server does whose user may make users: this machine has none."""
    asked, known = [], ["lab_page"]

    def answer(got):
        asked.append(got.body.decode())
        if "system.users" in asked[-1]:
            return "".join(f'["{name}"]\n' for name in known).encode()
        if "SELECT version()" in asked[-1]:
            return b'["25.3.1.1"]'
        if "FROM schema_version" in asked[-1]:
            return b'[0, "25.3.1.1"]' if "keep_days" in asked[-1] else b"[%d]" % VERSION
        return b""

    folder = tmp_path / "secrets"
    arguments = ["ship", "--set-up", "--team", "lab", "--secrets", str(folder)]
    with receiving(usual=answer) as server:
        arguments += ["--to", f"clickhouse://127.0.0.1:{server.port}/"]
        assert main(arguments) == 0
        known += ["lab_ship", "lab_reader"]
        assert main(arguments) == 0

    printed = capsys.readouterr().out
    assert f"user lab_page exists and keeps its password, which is not in {folder}" in printed
    assert not (folder / "lab_page.password").exists()
    assert "the users lab_ship, lab_page and lab_reader may use telemetry_lab" in printed
    assert "an administrator has to run" not in printed
    made = [line.split()[5] for line in asked if line.startswith("CREATE USER")]
    assert made == ["lab_ship", "lab_reader"] * 2
    assert [line for line in asked if line.startswith("GRANT")] == [*grants("telemetry_lab", "lab")] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--team", "A;DROP", "--secrets", "."), "is not the name of a team"),
        (("--team", "lab"), "--team NAME and --secrets DIR go together"),
        (("--secrets", "."), "--team NAME and --secrets DIR go together"),
    ],
)
def test_a_team_that_cannot_be_made_is_refused(options, said, capsys):
    assert main(["ship", "--set-up", "--to", "clickhouse://127.0.0.1:1/", *options]) == 2
    assert said in capsys.readouterr().err
