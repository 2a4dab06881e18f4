"""Real `telemetry ship` processes: next to a page, stopped, next to a large run, several at once, and idle."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from benchmarks.child import ROOT
from benchmarks.fleet_server import wait_until
from benchmarks.large_run import write_many_runs
from benchmarks.report import percentile
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import read_manifest, write_manifest
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore
from toolkit.telemetry.runs.store import UnknownRun

PATIENCE_S: Final = 600.0
_PAGE_EVERY_S: Final = 2.0
"""How often an open page asks for the answer of a request."""
_RECORDS_A_SECOND: Final = 20
_LOOK_EVERY_S: Final = 0.5
_SETTLING_S: Final = 6.0
_QUIET_S: Final = 80.0
_JOB: Final = """
import sys
from toolkit.telemetry import TelemetryLogger
with TelemetryLogger("job", log_dir=sys.argv[1], log_every=1, system=False) as log:
    for step in range(200):
        log.log_step(step, train_loss=1.0 / (step + 1))
"""
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


def to_page(address: Address, seconds: float, rate: int = 100) -> dict[str, float]:
    """Log `rate` records a second: how long each takes until a page can show it, and what the shipper costs."""
    store = ClickHouseStore(address, patience_s=PATIENCE_S)
    with _shipping(address) as (logs, (shipper,)), _logger(logs) as log:
        key = log.run_id or ""

        def seen() -> int:
            store._runs.look_again()  # noqa: SLF001
            if store.list_runs().find(key) is None:
                return 0
            store.refresh(key, wait_s=PATIENCE_S)
            return len(store.recent(key, "train_loss", 1_000_000))

        process, began = psutil.Process(shipper.pid), time.monotonic()
        before = _used(process)
        delays = _lags(log, seen, seconds, rate=rate)
        share = (_used(process) - before) / (time.monotonic() - began)
    return {"to_page_p99_s": percentile(delays, 0.99), "ship_share": share}


def answered(address: Address, requests: int) -> dict[str, float]:
    """Return how long a request from a page takes until its answer is there, with a real training."""
    with _shipping(address, options=["--deliver-requests"]) as (logs, _), ExitStack() as stack:
        null = subprocess.DEVNULL
        training = subprocess.Popen(
            [sys.executable, "-c", _TRAINING, logs], cwd=ROOT, stdout=null, stderr=null
        )
        stack.callback(training.wait)
        stack.callback(training.kill)
        store = ClickHouseStore(address)

        def is_listening() -> bool:
            with suppress(OSError, UnknownRun):
                return store.meta(read_manifest(logs / "asked").run_id).control_refusal is None
            return False

        wait_until(is_listening, PATIENCE_S)
        run_id = read_manifest(logs / "asked").run_id
        taken = [_request(store, run_id) for _ in range(requests)]
    return {"request_p99_s": percentile(taken, 0.99)}


def _request(store: ClickHouseStore, run_id: str) -> float:
    # A person presses the button at any time between two refreshes of the page.
    time.sleep(random.uniform(0.0, _PAGE_EVERY_S))
    began = time.monotonic()
    asked = store.ask(run_id, {"actions": ["save"]})

    def is_answered() -> bool:
        time.sleep(_PAGE_EVERY_S)
        store.refresh(run_id, wait_s=0.2)
        return any(record.get("id") == asked for record in store.events(run_id, (CONTROL_CHANGE,), limit=50))

    wait_until(is_answered, PATIENCE_S)
    return time.monotonic() - began


def drained(address: Address, jobs: int) -> dict[str, float]:
    """Stop the shipper of each job as its training ends: lines not shipped and wrong statuses, and the longest stop."""
    ask = Engine(address, patience_s=PATIENCE_S)
    found = {"drain_wrong": 0.0, "drain_s": 0.0}
    for _ in range(jobs):
        with _shipping(address) as (logs, (shipper,)):
            subprocess.run([sys.executable, "-c", _JOB, logs], cwd=ROOT, check=True, capture_output=True)
            began = time.monotonic()
            shipper.send_signal(signal.SIGTERM)
            shipper.wait()
            found["drain_s"] = max(found["drain_s"], time.monotonic() - began)
            run = quote(read_manifest(logs / "job").run_id)
            lines = (logs / "job" / METRICS_JSONL).read_bytes().count(b"\n")
            there = float(ask.query(f"SELECT uniqExact(at) FROM records WHERE run_id = {run}"))
            status = ask.query(f"SELECT argMax(status, version) FROM runs WHERE run_id = {run}")
            found["drain_wrong"] += lines - there + (status != b"finished\n")
    return found


def with_a_large_run(address: Address, large: Path, seconds: float) -> dict[str, float]:
    """Return the lag of a live run while a large one next to it, which has ended, is shipped and verified."""
    with _shipping(address) as (logs, _), _logger(logs) as log:

        def add_it() -> None:
            folder = logs / "large"
            folder.mkdir()
            os.link(large / METRICS_JSONL, folder / METRICS_JSONL)
            write_manifest(folder, replace(read_manifest(large), run_id=uuid.uuid4().hex, name="large"))

        delays = _lags(log, _in_engine(address, log), seconds, at_a_quarter=add_it)
    return {"large_lag_p99_s": percentile(delays, 0.99)}


def several(address: Address, engine_s: Callable[[], float], seconds: float) -> dict[str, float]:
    """Return how many times the processor time of one shipper four of the same directory take, with the engine's."""
    costs = {}
    for count in (1, 4):
        with _shipping(address, count) as (logs, shippers), _logger(logs) as log:
            processes = [psutil.Process(shipper.pid) for shipper in shippers]
            settled = _lags(log, _in_engine(address, log), _SETTLING_S)
            before = engine_s() + sum(map(_used, processes))
            _lags(log, _in_engine(address, log), seconds, first=1 + len(settled))
            costs[count] = engine_s() + sum(map(_used, processes)) - before
    return {"four_shippers_times": costs[4] / max(costs[1], 1e-9)}


def idle(address: Address, runs: int, seconds: float) -> dict[str, float]:
    """Return what a shipper costs with `runs` finished runs that are all shipped."""
    ask = Engine(address, patience_s=PATIENCE_S)
    with tempfile.TemporaryDirectory(prefix="bench-ship-", ignore_cleanup_errors=True) as place:
        logs = Path(place, "logs")
        write_many_runs(logs, runs, records=2, prefix="i")
        with _shipping(address, folder=logs) as (_, (shipper,)):
            there = f"SELECT uniqExact(run_id) FROM runs WHERE startsWith(folder, {quote(str(logs))})"
            wait_until(lambda: int(ask.query(there)) == runs, PATIENCE_S)
            # What has not changed for a minute is read less often.
            time.sleep(_QUIET_S)
            process = psutil.Process(shipper.pid)
            before = _used(process)
            time.sleep(seconds)
            return {"idle_share": (_used(process) - before) / seconds}


def _used(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _in_engine(address: Address, log: TelemetryLogger) -> Callable[[], int]:
    """Return what says the newest step of a run that the engine has."""
    query = f"SELECT max(step) FROM records WHERE run_id = {quote(log.run_id or '')} AND event = 'step'"
    return lambda: int(float(Engine(address).query(query).replace(b"\\N", b"0")))


def _lags(
    log: TelemetryLogger,
    seen: Callable[[], int],
    seconds: float,
    *,
    at_a_quarter: Callable[[], object] | None = None,
    rate: int = _RECORDS_A_SECOND,
    first: int = 1,
) -> list[float]:
    """Log steps from `first` on; return the seconds until each was `seen`, which returns the newest that is."""
    sent: list[float] = []
    delays: list[float] = []
    began = next_look = time.monotonic()
    while (now := time.monotonic()) < began + seconds or len(delays) < len(sent):
        if now > began + seconds + PATIENCE_S:
            raise TimeoutError(f"{len(sent) - len(delays)} records were not shipped in {PATIENCE_S:.0f} s")
        while now < began + seconds and len(sent) < (now - began) * rate:
            log.log_step(first + len(sent), train_loss=1.0 / (1 + len(sent)), lr=1e-4, grad_norm=1.0)
            sent.append(time.monotonic())
        if at_a_quarter is not None and now > began + seconds / 4:
            at_a_quarter()
            at_a_quarter = None
        if now >= next_look:
            newest = seen()
            now = time.monotonic()
            next_look = now + _LOOK_EVERY_S
            delays += [now - logged for logged in sent[len(delays) : max(0, newest - first + 1)]]
        time.sleep(0.005)
    return delays


@contextmanager
def _shipping(
    address: Address, count: int = 1, folder: Path | None = None, options: Sequence[str] = ()
) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Start shippers of one directory, each but the first as a node of its own."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        logs = folder or place / "logs"
        logs.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "toolkit.telemetry.cli",
            "ship",
            str(logs),
            "--to",
            str(address),
            *options,
        ]
        said = [place / f"said-{number}" for number in range(count)]
        shippers = []
        for number, file in enumerate(said):
            # The first one is that of the host that trains, which takes its runs at once.
            node = {**os.environ, "TELEMETRY_NODE": f"node-{number}"} if number else None
            shipper = subprocess.Popen(
                command, cwd=ROOT, env=node, stderr=stack.enter_context(file.open("wb"))
            )
            stack.callback(shipper.wait)
            stack.callback(shipper.kill)
            shippers.append(shipper)
        wait_until(lambda: all(b"shipping" in file.read_bytes() for file in said), PATIENCE_S)
        yield logs, shippers


def _logger(logs: Path) -> TelemetryLogger:
    log = TelemetryLogger(uuid.uuid4().hex, log_dir=logs, log_every=1, system=False, quiet=True)
    log.log_start()
    return log
