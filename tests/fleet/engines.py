"""ClickHouse on loopback, in a process and folders of its own, ended by its own id."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.waiting import wait_until
from toolkit.telemetry.fleet.address import Address, address_of

ROOT = Path(__file__).parents[2]
DATABASE = "telemetry"
PASSWORD = "p4ss-wörd"


class NoEngine(Exception):
    """An engine cannot be had on this machine; the message says why."""


class Embedded:
    """ClickHouse 26.9 inside a child process (chdb), behind a thin HTTP front."""

    name = "26.9"

    def __init__(self, folder: Path, config: Path | None = None, **front: Any) -> None:
        """Have the engine in `folder`, with a configuration of its own; `front` is what the HTTP front is given."""
        if find_spec("chdb") is None:
            raise NoEngine("chdb is not installed: pip install chdb")
        self.folder = folder
        self._front = {"folder": str(folder / "data"), **({"config": str(config)} if config else {}), **front}
        self.process: subprocess.Popen[bytes] | None = None
        self.port = self.https_port = 0

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = self.folder / "ports"
        ports.unlink(missing_ok=True)
        front = {**self._front, "port": self.port, "ports": str(ports)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.embedded_engine", json.dumps(front)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("ab"),
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal ends the program that uses it, which then ends this.
            start_new_session=True,
        )
        wait_until(ports.exists, self.process)
        self.port, self.https_port = json.loads(ports.read_text())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def address(self, database: str = DATABASE, **how: Any) -> Address:
        return address_of(f"clickhouse://127.0.0.1:{self.port}/{database}", **how)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def has_openssl() -> bool:
    return shutil.which("openssl") is not None
