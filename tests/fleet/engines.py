"""Real engines on loopback, each in folders of its own and ended by its own id."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from tests.provision import NoTool, tool
from tests.waiting import wait_until
from toolkit.telemetry.fleet import schema
from toolkit.telemetry.fleet.address import Address, address_of
from toolkit.telemetry.fleet.engine import Engine, EngineError

ROOT = Path(__file__).parents[2]
DATABASE = "telemetry"

_CONFIG = """<yandex><logger><level>warning</level><log>{dir}/log</log><errorlog>{dir}/err</errorlog></logger>
<http_port>{http}</http_port><tcp_port>{tcp}</tcp_port><listen_host>127.0.0.1</listen_host>
<interserver_http_port>{interserver}</interserver_http_port><interserver_http_host>127.0.0.1</interserver_http_host>
<path>{dir}/data/</path><tmp_path>{dir}/tmp/</tmp_path><user_files_path>{dir}/files/</user_files_path>
<format_schema_path>{dir}/fs/</format_schema_path><mark_cache_size>67108864</mark_cache_size>
<users_config>users.xml</users_config><default_profile>default</default_profile>
<default_database>default</default_database><timezone>UTC</timezone>{more}
<compression><case><min_part_size>0</min_part_size><min_part_size_ratio>0</min_part_size_ratio>
<method>zstd</method></case></compression>
<remote_servers>{clusters}</remote_servers></yandex>
"""

_USERS = """<yandex><profiles><default><max_threads>2</max_threads></default><readonly><readonly>1</readonly></readonly>
</profiles><quotas><default/></quotas><users>
<default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default>
<ship><password>{password}</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></ship>
<reader><password>{password}</password><networks><ip>127.0.0.1</ip></networks><profile>readonly</profile><quota>default</quota></reader>
</users></yandex>
"""

PASSWORD = "p4ss-wörd"
_STARTS = 6


class OldEngine(Engine):
    """Tells an old engine nothing of codecs, LowCardinality, JSON, and views with parameters or rights of their own."""

    def query(self, sql: str, **how: Any) -> bytes:
        if sql.startswith(("CREATE", "ALTER")) and super().query("SELECT version()").startswith(b"18."):
            sql = re.sub(r" CODEC\([^()]*(\([^()]*\)[^()]*)*\)|,\s*INDEX .*?(?=\) ENGINE)", "", sql)
            sql = re.sub(r"LowCardinality\(String\)| JSON(?=,)", " String", sql).replace(
                schema._OWN_RIGHTS, ""
            )
            sql = sql.replace("JSONExtractString", "visitParamExtractString")
            sql = sql.replace("OR REPLACE VIEW", "VIEW IF NOT EXISTS")
            if ":UInt64}" in sql or ":Array(" in sql or "MODIFY QUERY" in sql:
                return b""
        return super().query(sql, **how)


def for_old_engines() -> AbstractContextManager[object]:
    """Let the tables be made on the old engine too."""
    return mock.patch.object(schema, "Engine", OldEngine)


def set_up(*args: Any, **how: Any) -> list[str]:
    """Make the tables, also on the old engine."""
    with for_old_engines():
        return schema.set_up(*args, **how)


class NoEngine(Exception):
    """An engine cannot be had on this machine; the message says why."""


class Server:
    """One clickhouse-server process."""

    def __init__(self, folder: Path, ports: dict[str, int], command: list[str]) -> None:
        self.folder, self.ports = folder, ports
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # 18.16 sometimes aborts as it starts, as where another program has just taken one of its ports.
        for tries in range(_STARTS):
            self.process = self._begun()
            try:
                wait_until(self._answers, self.process)
            except AssertionError:
                if self.process.poll() is None or tries == _STARTS - 1:
                    raise
                time.sleep(tries)
            else:
                return

    def _begun(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, f"--config-file={self.folder}/config.xml"],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("ab"),
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            # Ctrl-C in a terminal ends the program that uses it, which then ends this.
            start_new_session=True,
        )

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(number)
            self.process.wait()

    def _answers(self) -> bool:
        engine = Engine(address_of(f"clickhouse://127.0.0.1:{self.ports['http']}/default"))
        try:
            return engine.query("SELECT 1") == b"1\n"
        except EngineError:
            return False
        finally:
            engine.close()


class Cluster:
    """A two-shard cluster of clickhouse-server processes: Debian's 18.16, or the one that CLICKHOUSE_BIN names.

    Each shard may have several replicas; `more` of their configuration then names their ZooKeeper.
    """

    cluster = "fleet"

    def __init__(
        self, folder: Path, *, name: str = "18.16", shards: int = 2, replicas: int = 1, more: str = ""
    ) -> None:
        self.name = name
        command = server_command(name)
        ports = [
            dict(zip(("http", "tcp", "interserver", "https"), free_ports(4), strict=True))
            for _ in range(shards * replicas)
        ]
        nodes = [f"<replica><host>127.0.0.1</host><port>{each['tcp']}</port></replica>" for each in ports]
        shard_list = "".join(
            "<shard><internal_replication>true</internal_replication>"
            f"{''.join(nodes[first : first + replicas])}</shard>"
            for first in range(0, len(nodes), replicas)
        )
        self.servers = []
        for number, each in enumerate(ports):
            place = folder / str(number)
            for inner in ("data", "tmp", "files", "fs"):
                (place / inner).mkdir(parents=True)
            config = _CONFIG.format(
                dir=place,
                clusters=f"<fleet>{shard_list}</fleet>",
                more=more.format(dir=place, shard=number // replicas, replica=number % replicas, **each),
                **{key: each[key] for key in ("http", "tcp", "interserver")},
            )
            (place / "config.xml").write_text(config)
            (place / "users.xml").write_text(_USERS.format(password=PASSWORD))
            self.servers.append(Server(place, each, command))

    def start(self) -> None:
        try:
            for server in self.servers:
                server.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def address(self, database: str = DATABASE, **how: Any) -> Address:
        hosts = ",".join(f"127.0.0.1:{server.ports['http']}" for server in self.servers)
        return address_of(f"clickhouse://{hosts}/{database}", **how)


class Embedded:
    """ClickHouse 26.9 inside a child process (chdb), behind a thin HTTP front."""

    cluster = None
    name = "26.9"

    def __init__(self, folder: Path, config: Path | None = None) -> None:
        if find_spec("chdb") is None:
            raise NoEngine("chdb is not installed: pip install chdb")
        self.folder = folder
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.fleet.embedded_engine"),
                *(str(self.folder / "data"), str(self.port), str(port_file)),
                *([str(self.config)] if self.config else []),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_until(port_file.exists, self.process)
        self.port = int(port_file.read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def address(self, database: str = DATABASE, **how: Any) -> Address:
        return address_of(f"clickhouse://127.0.0.1:{self.port}/{database}", **how)


def server_command(name: str) -> list[str]:
    """Return how a clickhouse-server starts.

    Raises:
        NoEngine: there is none.
    """
    if name != "18.16":
        return [os.environ["CLICKHOUSE_BIN"], "server"]
    try:
        return [tool("clickhouse-server", "clickhouse-server")]
    except NoTool as error:
        raise NoEngine(f"Debian's clickhouse-server: {error}") from None


def engine_names() -> list[str]:
    return ["18.16", "26.9", *(["server"] if os.environ.get("CLICKHOUSE_BIN") else [])]


def start_engine(name: str, folder: Path) -> Cluster | Embedded:
    """Return a started engine.

    Raises:
        NoEngine: it cannot be had here.
    """
    engine: Cluster | Embedded = Embedded(folder) if name == "26.9" else Cluster(folder, name=name)
    engine.start()
    return engine


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def has_openssl() -> bool:
    return shutil.which("openssl") is not None
