"""Sends messages in a network of its own, and prints which were delivered; exits with 77 where it may not make one.

python send_in_a_private_network.py LOG_DIR
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.reader import read_from

# A network of its own, in which this machine is 10.254.7.9 and nothing else is there.
if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:
    sys.exit(77)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    address = struct.pack("16sHH4s8x", b"lo", socket.AF_INET, 0, socket.inet_aton("10.254.7.9"))
    fcntl.ioctl(any_socket, 0x8916, address)
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))

got = []


class Chat(BaseHTTPRequestHandler):
    def do_POST(self):
        got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


names = {"chat.corp.test": "10.254.7.9", "turned.corp.test": "169.254.169.254"}
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: real(names.get(host, host), *rest, **more)
server = ThreadingHTTPServer(("10.254.7.9", 0), Chat)
threading.Thread(target=server.serve_forever, daemon=True).start()
port, place = server.server_port, Path(sys.argv[1])
os.environ["WHERE"] = f"http://10.254.7.9:{port}/by-variable"


def run(name, receiver):
    "Have a run send its start and end to `receiver`, and return what came of it, and its folder."
    options = {"log_dir": place, "messages": [receiver], "close_timeout": 60.0}
    config = {"telemetry": {"messages": [receiver]}}
    with TelemetryLogger(name, system=False, csv=False, config=config, **options) as log:
        log.log_start()
    records = read_from(log.run_folder / "metrics.jsonl").records
    return [one for one in records if one["event"] in ("message", "error")], log.run_folder


allowed = {"to": "slack", "allow_private": True}
result = {"sent": [], "refused": []}
for url in (f"http://10.254.7.9:{port}/hooks/a", f"http://chat.corp.test:{port}/hooks/b"):
    result["sent"] += [one["status"] for one in run("allowed", {**allowed, "url": url})[0]]
by_variable, folder = run("variable", {**allowed, "url_env": "WHERE"})
result["sent"] += [one["status"] for one in by_variable]
before = len(got)
refused, _ = run("not-allowed", {"to": "slack", "url_env": "WHERE"})
result["refused"] += [one["message"] for one in refused]
turned, _ = run("turned", {**allowed, "url": "http://turned.corp.test/latest/meta-data"})
result["refused"] += [one["reason"] for one in turned if one["event"] == "message"]
# The folder says allow_private too, and is not asked.
result["from_folder"] = main(["setup", "message", str(folder)])
result["arrived"], result["after"] = before, len(got) - before
print(json.dumps(result))
