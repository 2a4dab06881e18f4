"""Replicas of a shard, kept equal by ZooKeeper: nothing is lost when one of them, or ZooKeeper, stops."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.fleet.engines import Cluster, NoEngine, for_old_engines, free_ports
from tests.fleet.shipped_runs import append, engine_bytes, id_of, make_run, record_bytes
from tests.lengths import in_make_faults
from tests.provision import NoTool, install_package, tool
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.fleet import schema
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.schema import Tables, statements
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

_MORE = """<zookeeper><node><host>127.0.0.1</host><port>{port}</port></node>
<session_timeout_ms>6000</session_timeout_ms></zookeeper>
<macros><shard>{{shard}}</shard><replica>{{replica}}</replica></macros>"""
_JAR = "/usr/share/java/zookeeper.jar"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeper:
    """Debian's ZooKeeper, as one process of its own."""

    def __init__(self, folder):
        try:
            self._java = tool("java", "default-jre-headless")
        except NoTool as error:
            raise NoEngine(str(error)) from None
        if not Path(_JAR).exists():
            said = install_package("zookeeper")
            if not Path(_JAR).exists():
                raise NoEngine(said)
        (self.port,) = free_ports(1)
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "zoo.cfg").write_text(
            f"tickTime=1000\ndataDir={folder}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n4lw.commands.whitelist=ruok\n"
        )
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [self._java, "-Xmx256m", "-cp", "/usr/share/java/*", _MAIN, str(self.folder / "zoo.cfg")],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("ab"),
            stderr=subprocess.STDOUT,
            cwd=self.folder,
        )

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def replicas(tmp_path):
    """A ZooKeeper and one shard of two replicas."""
    try:
        keeper = ZooKeeper(tmp_path / "zookeeper")
        cluster = Cluster(tmp_path / "cluster", shards=1, replicas=2, more=_MORE.format(port=keeper.port))
    except NoEngine as error:
        print(f"no replicas: {error}")
        pytest.skip(f"no replicas: {error}")
    try:
        keeper.start()
        cluster.start()
        yield cluster, keeper
    finally:
        cluster.stop()
        keeper.stop()


def alone(server):
    """The address of one replica."""
    return address_of(f"clickhouse://127.0.0.1:{server.ports['http']}/telemetry")


def has(server, folder):
    """Whether a replica has every line of a run, and how far it was committed."""
    connection = Engine(alone(server))
    try:
        found = engine_bytes_of_replica(connection, id_of(folder))
        end = connection.rows(
            f"SELECT max(end) FROM commits_local WHERE run_id = '{id_of(folder)}'", "UInt64"
        )
    except (EngineError, AssertionError):
        return False
    finally:
        connection.close()
    expected = record_bytes(folder)["metrics.jsonl"]
    return found == {(0, 1): expected} and end == [(len(expected),)]


def engine_bytes_of_replica(connection, run_id):
    class Local:
        def iterate(self, sql, *types):
            return connection.iterate(sql.replace("FROM records", "FROM records_local"), *types)

    return engine_bytes(Local(), run_id)


def test_replicated_tables_are_what_a_current_engine_accepts(engine):
    if engine.name == "18.16":
        pytest.skip("made for real in make faults")
    connection = Engine(engine.address())
    made = list(statements("telemetry", Tables(cluster="fleet", quorum=2)))
    for statement in made:
        connection.query(f"EXPLAIN AST {statement}")

    replicated = [statement for statement in made if "ENGINE = Replicated" in statement]
    assert len(replicated) == len(schema.TABLES)
    assert (
        "ReplicatedReplacingMergeTree('/telemetry/telemetry/{shard}/records', '{replica}') " in replicated[0]
    )
    assert any("'/telemetry/telemetry/{shard}/commits', '{replica}', end)" in text for text in replicated)


@in_make_faults
def test_replicas_catch_up_and_inserts_wait_for_a_quorum(replicas, logs, tmp_path, capsys):
    cluster, keeper = replicas
    address = cluster.address()
    hosts = str(address).partition("@")[2]
    command = ["ship", "--set-up", "--cluster", "fleet", "--replicas", "--to", f"clickhouse://{hosts}"]
    with for_old_engines():
        wait_until(lambda: main(command) == 0)
    assert "tables of version 2 made" in capsys.readouterr().out
    folder = make_run(logs, "copied", 10)
    shipper = Shipper(Engine(address), [logs])
    shipper.start()
    shipper.ship_all()
    one, two = cluster.servers
    assert has(one, folder), "an insert that was answered is on both replicas"
    assert has(two, folder)

    # A replica is gone: the quorum of two cannot be had, the file is the queue.
    two.kill()
    append(folder, range(10, 20))
    shipper.runs[folder].next_look = 0.0
    with pytest.raises(EngineError) as refused:
        shipper.ship_all()
    print(refused.value)
    store = ClickHouseStore(address, patience_s=120.0)
    assert store.refresh(id_of(folder)).records == 10
    two.start()
    wait_until(lambda: shipped(shipper, folder))
    assert has(one, folder)
    assert has(two, folder)

    # ZooKeeper stops: inserts are refused, reads go on.
    keeper.process.send_signal(signal.SIGSTOP)
    append(folder, range(20, 30))
    wait_until(lambda: refuses(shipper, folder), timeout_s=300.0)
    assert ClickHouseStore(address, patience_s=120.0).refresh(id_of(folder)).records >= 20
    keeper.process.send_signal(signal.SIGCONT)
    wait_until(lambda: shipped(shipper, folder), timeout_s=300.0)
    assert has(one, folder)
    assert has(two, folder)

    # With a quorum of one, inserts continue on one replica, and the other gets them when it is back.
    shipper.engine.insert_settings["insert_quorum"] = 0
    for each in shipper._shards.engines:
        each.insert_settings["insert_quorum"] = 0
    one.kill()
    append(folder, range(30, 40))
    wait_until(lambda: shipped(shipper, folder))
    assert has(two, folder)
    one.start()
    wait_until(lambda: has(one, folder), timeout_s=300.0)


def shipped(shipper, folder):
    shipper.runs[folder].next_look = 0.0
    try:
        shipper.ship_all()
    except EngineError:
        return False
    return shipper.behind == 0


def refuses(shipper, folder):
    shipper.runs[folder].next_look = 0.0
    try:
        shipper.ship_all()
    except EngineError as error:
        print(error)
        return str(error)
    return ""
