"""How long a request from a page takes until its answer is on the page, through an engine.

A real training and a real `telemetry ship`, each a process of its own; the page asks every two seconds, as an open one
does.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from benchmarks.child import ROOT
from benchmarks.fleet_server import wait_until
from benchmarks.report import percentile
from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import UnknownRun

PAGE_EVERY_S: Final = 2.0
_PATIENCE_S: Final = 120.0

_TRAINING: Final = """
import sys, time
from toolkit.telemetry import TelemetryLogger
log = TelemetryLogger("asked", log_dir=sys.argv[1], log_every=10)
log.declare_action("save")
log.log_start()
step = 0
while True:
    log.log_step(step, train_loss=1.0 / (step + 1), lr=1e-3)
    log.take_requests()
    step += 1
    time.sleep(0.05)
"""


def request_to_answer(address: Address, requests: int = 20) -> dict[str, float]:
    """Return p50, p99 and the longest of the seconds until the answer of `requests` is on a page.

    The engine at `address` has our tables.
    """
    with tempfile.TemporaryDirectory(prefix="bench-requests-") as place:
        logs = Path(place) / "logs"
        logs.mkdir()
        ship = ("-m", "toolkit.telemetry.cli", "ship", logs, "--to", address, "--deliver-requests")
        with _python(*ship), _python("-c", _TRAINING, logs):
            store = ClickHouseStore(address)
            run_id = _wait_for_run(store, logs)
            taken = [_one(store, run_id) for _ in range(requests)]
    return {
        "requests": len(taken),
        "p50_s": percentile(taken, 0.5),
        "p99_s": percentile(taken, 0.99),
        "longest_s": max(taken),
    }


def _one(store: ClickHouseStore, run_id: str) -> float:
    # A person presses the button at any time between two looks of the page.
    time.sleep(random.uniform(0.0, PAGE_EVERY_S))
    began = time.monotonic()
    asked = store.ask(run_id, {"actions": ["save"]})
    while time.monotonic() - began < _PATIENCE_S:
        time.sleep(PAGE_EVERY_S)
        store.refresh(run_id, wait_s=0.2)
        if any(record.get("id") == asked for record in store.events(run_id, (CONTROL_CHANGE,), limit=50)):
            return time.monotonic() - began
    raise TimeoutError(f"the run did not answer within {_PATIENCE_S:.0f} s")


def _wait_for_run(store: ClickHouseStore, logs: Path) -> str:
    def is_listening() -> bool:
        with suppress(OSError, UnknownRun):
            return store.meta(read_manifest(logs / "asked").run_id).control_refusal is None
        return False

    wait_until(is_listening, _PATIENCE_S)
    return read_manifest(logs / "asked").run_id


@contextmanager
def _python(*arguments: object) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
