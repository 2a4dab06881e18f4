"""A dashboard as people start it: its own process, an ephemeral port, a home and a folder that start out empty."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.fork_server import A_DASHBOARD, start_python
from tests.project.markdown import ROOT
from tests.waiting import wait_until

RUN_DASHBOARD = ROOT / "run_dashboard.py"
PATIENCE_S = 180.0


fork_dashboard = functools.partial(start_python, imported=A_DASHBOARD)


class Started:
    """One started process; what it prints goes to files, so that nothing blocks and everything can be read."""

    def __init__(self, command, folder, *, environ=None, start=subprocess.Popen):
        self.folder = Path(folder)
        self.home = self.folder / "home"
        self.cwd = self.folder / "cwd"
        self.home.mkdir(exist_ok=True)
        self.cwd.mkdir(exist_ok=True)
        self._out = self.folder / "stdout.txt"
        self._err = self.folder / "stderr.txt"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STREAMLIT_", "TELEMETRY_", "XDG_", "DISPLAY", "PYTHON"))
        }
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = start(
                command,
                cwd=self.cwd,
                env={**kept, "HOME": str(self.home), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self):
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self):
        return self._err.read_text(encoding="utf-8")

    def wait_for(self, text):
        wait_until(lambda: text in self.out or self.process.poll() is not None)
        assert text in self.out, f"ended with {self.process.returncode}: {self.out}{self.err}"

    def wait_until_ready(self):
        self.wait_for("Dashboard: ")
        self.port = int(re.search(r"Dashboard: http://\S+?:(\d+)[ /]", self.out)[1])
        return self

    def end(self, number=signal.SIGTERM):
        """Send `number` and return the exit code and the seconds it took."""
        begin = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        return code, time.monotonic() - begin

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def dashboard(folder, *arguments, environ=None, fresh=False):
    """Start run_dashboard.py with `arguments`, on any free port unless they name one.

    It is forked from a process that has Streamlit imported; `fresh` starts a new interpreter, as people do.
    """
    port = () if "--port" in arguments else ("--port", "0")
    command = [str(RUN_DASHBOARD), *port, "--no-browser", *arguments]
    if fresh:
        return Started([sys.executable, *command], folder, environ=environ)
    return Started(command, folder, environ=environ, start=fork_dashboard)


def ask(port, head, *, body=b""):
    """Send the lines of `head` to the port as they are; return status, headers in lower case, and body."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        reader = connection.makefile("rb")
        status = int(reader.readline().split()[1])
        headers = {}
        for line in iter(reader.readline, b"\r\n"):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        return status, headers, reader.read(length)


def get(port, path="/", *, host=None, **headers):
    host = f"localhost:{port}" if host is None else host
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ask(port, [f"GET {path} HTTP/1.1", f"Host: {host}", *lines])


def handshake(port, *, host=None, origin=None, cookie=None):
    """Ask for a WebSocket to the pages' own stream; 101 means it was granted."""
    host = f"localhost:{port}" if host is None else host
    head = [
        "GET /_stcore/stream HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    said = {"Origin": origin, "Cookie": cookie}
    return ask(port, head + [f"{name}: {value}" for name, value in said.items() if value is not None])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
