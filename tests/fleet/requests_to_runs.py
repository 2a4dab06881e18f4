"""Requests in the engine, live runs that take them, and shippers that deliver them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import begin_shipping, make_run, write
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.runfolder.manifest import Heartbeat, read_manifest, write_manifest


def make_live_run(log_dir: Path, name: str) -> Path:
    """Return the folder of a run that is this process's; it answers nothing by itself."""
    folder = make_run(log_dir, name, lines=3)
    folder.chmod(0o700)
    manifest = read_manifest(folder)
    now = time.time()
    session = replace(manifest.latest, pid=os.getpid(), started=now - 1, status="running")
    write_manifest(
        folder,
        replace(
            manifest,
            sessions=(session,),
            heartbeat=Heartbeat(time=now, seq=3, global_step=3),
            control={
                "log_every": {"low": 5, "high": 2000},
                "log_every_now": 10,
                "actions": ["stop"],
                "knobs": {},
            },
        ),
    )
    return folder


def answer(folder: Path, request_id: str) -> None:
    """Write the run's answer to a request."""
    record = {"event": "control_change", "time": time.time(), "seq": 9, "session": 1, "id": request_id}
    write(folder, json.dumps({**record, "status": "applied"}).encode() + b"\n")


def put(engine, run_id: str, request_id: str, **changed) -> None:
    """Insert a request."""
    now = time.time()
    fields = {"asked": now, "expires": now + 600, "by": b"ann", "body": b'{"log_every": 20}', **changed}
    types = dict.fromkeys(("run_id", "id", "by", "body"), "String")
    types |= {"asked": "Float64", "expires": "Float64", "created": "Date"}
    row = {**fields, "run_id": run_id, "id": request_id, "created": 20_717}
    connection = Engine(engine.address())
    connection.insert_rows("requests", types, [[row[name] for name in types]])
    connection.close()


class Node:
    """A shipper that delivers requests, in this process, a round at a time."""

    def __init__(self, engine, logs: Path) -> None:
        self.said: list[str] = []
        self.shipper = begin_shipping(engine, logs, say=self.said.append, delivers_requests=True)
        self.round()

    def round(self) -> None:
        while self.shipper.ship_round():
            pass


def start_shipper(engine, logs: Path) -> subprocess.Popen[str]:
    """Start `telemetry ship` that delivers requests."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "toolkit.telemetry.cli", "ship", str(logs)),
            *("--to", str(engine.address()), "--deliver-requests"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
