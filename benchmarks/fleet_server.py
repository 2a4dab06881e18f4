"""ClickHouse 26.9 inside a process (chdb), with as much of a server's HTTP as our client uses.

`python -m benchmarks.fleet_server FOLDER` serves until it is killed, and writes its port to the file FOLDER/port.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from benchmarks.child import ROOT
from toolkit.telemetry.fleet.address import Address, address_of

_PATIENCE_S: Final = 120.0
_FORMAT: Final = re.compile(r"\s*(.*?)\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)
_NOT_SETTINGS: Final = {"query", "database", "wait_end_of_query", "buffer_size"}
_CONNECTIONS: Final[list[tuple[Any, str]]] = []
"""Those that no request uses now, and their database: making one takes long."""


class NoEngineError(Exception):
    """An engine cannot be had on this machine; the message says why."""


class Server:
    """The engine in a process of its own; start it once."""

    def __init__(self, folder: Path) -> None:
        """Keep its data in `folder`."""
        if find_spec("chdb") is None:
            raise NoEngineError("chdb is not installed: pip install chdb")
        folder.mkdir(parents=True)
        self._folder = folder
        self._port = 0
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._folder / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fleet_server", str(self._folder)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal ends the program that uses it, which then ends this.
                start_new_session=True,
            )
        wait_until((self._folder / "port").exists, _PATIENCE_S)
        self._port = int((self._folder / "port").read_text())

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def address(self) -> Address:
        """Return where it answers."""
        return address_of(f"clickhouse://127.0.0.1:{self._port}/telemetry")


def wait_until(is_so: Callable[[], object], patience_s: float) -> None:
    """Wait until it is so.

    Raises:
        TimeoutError: it was not in that time.
    """
    deadline = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {patience_s:.0f} s")
        time.sleep(0.1)


class _Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    place = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        options = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        try:
            answer, status = _answer(self.place, options, body), 200
        except Exception as error:  # noqa: BLE001 - chdb raises several kinds
            answer, status = str(error).encode(), 500
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _answer(place: str, options: dict[str, str], body: bytes) -> bytes:
    import chdb

    wanted = options.get("database", "default")
    if _CONNECTIONS:
        engine, database = _CONNECTIONS.pop()
    else:
        engine, database = chdb.connect(place), ""  # type: ignore[no-untyped-call]  # it has no types
    if database != wanted:
        engine.query(f"USE `{wanted}`")
    settings = ", ".join(f"{name} = {value}" for name, value in options.items() if name not in _NOT_SETTINGS)
    insert = _FORMAT.match(options.get("query", ""))
    if insert:
        with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            file.write(body)
            file.flush()
            engine.query(f"{insert[1]} FROM INFILE '{file.name}' SETTINGS {settings} FORMAT {insert[2]}")
        answer = b""
    else:
        if settings:
            engine.query(f"SET {settings}")
        found = _FORMAT.match(body.decode())
        answer = engine.query(*found.groups() if found else (body.decode(), "TabSeparated")).bytes() or b""
    # Not after a failure: its next answer may have the format of the one that failed.
    _CONNECTIONS.append((engine, wanted))
    return answer


def main(folder: str) -> None:
    """Serve until this process is killed."""
    _Front.place = f"{folder}/data"
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Front)
    server.daemon_threads = True
    half = Path(folder, "port.half")
    half.write_text(str(server.server_port))
    half.replace(Path(folder, "port"))
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
