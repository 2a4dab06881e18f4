"""A ClickHouse that runs inside this process (chdb), behind as much of the server's HTTP as our client uses.

`python -m tests.fleet.embedded_engine FOLDER PORT PORT_FILE [CONFIG]` serves until it is killed.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import socket
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

_INSERT = re.compile(r"\s*(INSERT INTO .*?)\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)
_FORMAT = re.compile(r"^(.*)\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)
_NOT_SETTINGS = {"query", "database", "wait_end_of_query", "buffer_size"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    unused: ClassVar[list] = []
    """Connections to the engine that no request uses now, and their database: making one takes long."""

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        options = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        try:
            answer, status = self._answer(options, body), 200
        except Exception as error:  # noqa: BLE001 - chdb raises several kinds
            answer, status = str(error).encode(), 500
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def _answer(self, options, body):
        wanted = options.get("database", "default")
        engine, database = self._engine()
        try:
            if database != wanted:
                engine.query(f"USE `{wanted}`")
                database = wanted
            return self._run(engine, options, body)
        finally:
            self.unused.append((engine, database))

    def _run(self, engine, options, body):
        settings = ", ".join(
            f"{name} = {value}" for name, value in options.items() if name not in _NOT_SETTINGS
        )
        insert = _INSERT.match(options.get("query", ""))
        if insert:
            # chdb's own way to insert bytes, send_insert, does not report what fails in a materialized view.
            with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
                file.write(body)
                file.flush()
                engine.query(f"{insert[1]} FROM INFILE '{file.name}' SETTINGS {settings} FORMAT {insert[2]}")
            return b""
        sql = options.get("query", "") + body.decode("utf-8")
        found = _FORMAT.match(sql)
        answer = engine.query(found[1] if found else sql, found[2] if found else "TabSeparated")
        return answer.bytes() or b""

    def _engine(self):
        with contextlib.suppress(IndexError):
            return self.unused.pop()
        import chdb

        return chdb.connect(self.server.place), None

    def log_message(self, *_):
        pass


def main(folder: str, port: str, port_file: str, config: str = "") -> None:
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    server.place = f"{folder}?config-file={config}" if config else folder
    half = Path(f"{port_file}.half")
    half.write_text(str(server.server_port))
    os.replace(half, port_file)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
