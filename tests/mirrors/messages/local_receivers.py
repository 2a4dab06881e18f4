"""Receivers of messages on this machine: they keep what they get, and answer as configured."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from toolkit.telemetry.mirrors.messages.options import MessageOptions, web_address
from toolkit.telemetry.mirrors.messages.receiver import Receiver


class Got:
    """One request that arrived."""

    def __init__(self, path, headers, body):
        self.path = path
        self.headers = headers
        self.body = body
        self.status = None
        """With what it was answered."""

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def bytes(self):
        """All of it, for whoever looks for something that must not be there."""
        lines = [self.path, *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\n".join(lines).encode() + b"\n" + self.body


class HttpReceiver:
    """Answers with each of `answers`, (status, headers, body), in turn, and then with `usual`.

    That is another one, a body, or a function that returns either.
    """

    def __init__(self, answers=(), usual=b"ok", tls=None, port=0):
        self.got = []
        self.answers = list(answers)
        self._usual = usual
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got = Got(self.path, self.headers, body)
                usual = receiver._usual(got) if callable(receiver._usual) else receiver._usual
                usual = usual if isinstance(usual, tuple) else (200, {}, usual)
                got.status, headers, answer = receiver.answers.pop(0) if receiver.answers else usual
                receiver.got.append(got)
                self.send_response(got.status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self):
                receiver.got.append(Got(self.path, self.headers, b"GET"))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class RawReceiver:
    """Lets `behave` do what it likes with each connection; `is_closing` is set when it has to come back."""

    def __init__(self, behave):
        self.connections = 0
        self.is_closing = threading.Event()
        self._behave = behave
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self.is_closing.is_set():
                connection.close()
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection:
            try:
                self._behave(connection, self.is_closing)
            except OSError:
                pass

    def close(self):
        self.is_closing.set()
        # A pending accept is woken by a connection.
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._socket.close()
        for thread in list(self._threads):
            thread.join(10)


def never_answer(connection, is_closing):
    connection.recv(65536)
    is_closing.wait(600)


@contextmanager
def receiving(*answers, usual=b"ok", tls=None, port=0):
    receiver = HttpReceiver(answers, usual, tls, port)
    try:
        yield receiver
    finally:
        receiver.close()


@contextmanager
def raw_receiving(behave):
    receiver = RawReceiver(behave)
    try:
        yield receiver
    finally:
        receiver.close()


def to(url, service="webhook", *, secret=None, per_minute=60):
    """Return a receiver at `url`."""
    address = web_address(url)
    options = MessageOptions(to=service, name=service, url=address, per_minute=per_minute)
    return Receiver(options, address, secret)


def certificate(folder, name="localhost", days=30):
    """Return the files of a certificate for `name` that no authority has signed, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", str(days), "-subj", f"/CN={name}",
         "-addext", f"subjectAltName={'IP' if name[0].isdigit() else 'DNS'}:{name}"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert
