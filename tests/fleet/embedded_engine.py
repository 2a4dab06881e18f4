"""A ClickHouse that runs inside this process (chdb), behind as much of the server's HTTP as our client uses.

`python -m tests.fleet.embedded_engine JSON` serves until it is killed. JSON has the `folder`, the `port`, the file for
the `ports` it got, and perhaps a `config`, the `passwords` of users, and `certificate` and `key` for a port with TLS.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import re
import socket
import ssl
import sys
import tempfile
import threading
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
            self._require_password()
            answer, status = self._answer(options, body), 200
        except Exception as error:  # noqa: BLE001 - chdb raises several kinds
            answer, status = str(error).encode(), 500
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def _require_password(self):
        user, password = self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")
        if self.headers.get("Authorization", "").startswith("Basic "):
            both = base64.b64decode(self.headers["Authorization"].removeprefix("Basic "))
            user, _, password = both.decode().partition(":")
        passwords = self.server.passwords
        # As http.server reads headers.
        known = passwords.get(user, "").encode().decode("latin-1")
        if passwords and (user not in passwords or password not in (passwords[user], known)):
            raise PermissionError("Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)")

    def _answer(self, options, body):
        wanted = options.get("database", "default")
        engine, database = self._engine()
        if database != wanted:
            engine.query(f"USE `{wanted}`")
        answer = self._run(engine, options, body)
        # Not after a failure: its next answer may have the format of the one that failed.
        self.unused.append((engine, wanted))
        return answer

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
        if settings:
            engine.query(f"SET {settings}")
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


def main(given: str) -> None:
    front = json.loads(given)
    plain = _server(front, front["port"])
    servers = [plain]
    if "certificate" in front:
        secured = _server(front, 0)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(front["certificate"], front["key"])
        # A handshake that a client breaks off holds up no other one.
        secured.socket = context.wrap_socket(secured.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=secured.serve_forever, daemon=True).start()
        servers.append(secured)
    half = Path(f"{front['ports']}.half")
    half.write_text(json.dumps([plain.server_port, servers[-1].server_port]))
    os.replace(half, front["ports"])
    plain.serve_forever()


def _server(front: dict, port: int) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.place = (
        f"{front['folder']}?config-file={front['config']}" if "config" in front else front["folder"]
    )
    server.passwords = front.get("passwords", {})
    return server


if __name__ == "__main__":
    main(*sys.argv[1:])
