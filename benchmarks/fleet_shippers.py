"""Real `telemetry ship` processes: stopped, next to a large run, several at once, and idle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

_PATIENCE_S: Final = 600.0
_RECORDS_A_SECOND: Final = 20
_LOOK_EVERY_S: Final = 0.25
_SETTLING_S: Final = 6.0
_QUIET_S: Final = 80.0
_JOB: Final = """
import sys
from toolkit.telemetry import TelemetryLogger
with TelemetryLogger("job", log_dir=sys.argv[1], log_every=1, system=False) as log:
    for step in range(200):
        log.log_step(step, train_loss=1.0 / (step + 1))
"""


def drained(address: Address, jobs: int) -> dict[str, float]:
    """Stop the shipper of each job as its training ends: lines not shipped, wrong statuses, longest stop."""
    ask = Engine(address, patience_s=_PATIENCE_S)
    found = {"drain_behind": 0.0, "drain_wrong": 0.0, "drain_s": 0.0}
    for _ in range(jobs):
        with _shipping(address) as (logs, (shipper,)):
            subprocess.run([sys.executable, "-c", _JOB, logs], cwd=ROOT, check=True, capture_output=True)
            began = time.monotonic()
            shipper.terminate()
            shipper.wait()
            found["drain_s"] = max(found["drain_s"], time.monotonic() - began)
            run = quote(read_manifest(logs / "job").run_id)
            lines = (logs / "job" / METRICS_JSONL).read_bytes().count(b"\n")
            there = float(ask.query(f"SELECT uniqExact(at) FROM records WHERE run_id = {run}"))
            status = ask.query(f"SELECT argMax(status, version) FROM runs WHERE run_id = {run}")
            found["drain_behind"] += lines - there
            found["drain_wrong"] += status != b"finished\n"
    return found


def with_a_large_run(address: Address, large: Path, seconds: float) -> dict[str, float]:
    """Return the lag of a live run while a large one next to it, which has ended, is shipped and verified."""
    with _shipping(address) as (logs, _), _logger(logs) as log:

        def add_it() -> None:
            folder = logs / "large"
            folder.mkdir()
            os.link(large / METRICS_JSONL, folder / METRICS_JSONL)
            write_manifest(folder, replace(read_manifest(large), run_id=uuid.uuid4().hex, name="large"))

        delays = _lags([log], Engine(address, patience_s=_PATIENCE_S), seconds, add_it)
    return {"large_lag_p99_s": percentile(delays, 0.99)}


def several(address: Address, engine_s: Callable[[], float], seconds: float) -> dict[str, float]:
    """Return how many times the processor time of one shipper four of the same directory take, with the engine's."""
    costs = {}
    for count in (1, 4):
        with _shipping(address, count) as (logs, shippers), _logger(logs) as log:
            processes = [psutil.Process(shipper.pid) for shipper in shippers]
            used = [0.0, 0.0]
            first = 1
            for turn, length in enumerate((_SETTLING_S, seconds)):
                before = engine_s() + sum(map(_used, processes))
                first += len(_lags([log], Engine(address), length, first=first))
                used[turn] = engine_s() + sum(map(_used, processes)) - before
            costs[count] = used[1]
    return {"four_shippers_times": costs[4] / max(costs[1], 1e-9)}


def idle(address: Address, runs: int, seconds: float) -> dict[str, float]:
    """Return what a shipper costs with `runs` finished runs that are all shipped; calls only where strace is."""
    ask = Engine(address, patience_s=_PATIENCE_S)
    with _folder() as place:
        logs = place / "logs"
        write_many_runs(logs, runs, records=2, prefix="i")
        with _shipping(address, folder=logs) as (_, (shipper,)):
            there = f"SELECT uniqExact(run_id) FROM runs WHERE startsWith(folder, {quote(str(logs))})"
            wait_until(lambda: int(ask.query(there)) == runs, _PATIENCE_S)
            # What has not changed for a minute is looked at less often.
            time.sleep(_QUIET_S)
            process = psutil.Process(shipper.pid)
            before = _used(process)
            time.sleep(seconds)
            found = {"idle_share": (_used(process) - before) / seconds}
            strace = shutil.which("strace")
            if strace is None:
                return found
            calls = place / "calls"
            command = [
                strace,
                "-f",
                "-qq",
                "-e",
                "trace=%file,getdents64",
                "-o",
                str(calls),
                "-p",
                str(shipper.pid),
            ]
            counting = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(seconds)
            counting.send_signal(signal.SIGINT)
            counting.wait()
            return {**found, "idle_calls": calls.read_bytes().count(b"(") / seconds}


def _used(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _lags(
    logs: Sequence[TelemetryLogger],
    ask: Engine,
    seconds: float,
    at_a_quarter: Callable[[], object] = lambda: None,
    *,
    table: str = "records",
    first: int = 1,
) -> list[float]:
    """Log 20 records a second to all `logs`; return the seconds until each of the first was in the engine."""
    query = f"SELECT max(step) FROM {table} WHERE run_id = {quote(logs[0].run_id or '')} AND event = 'step'"
    sent: list[float] = []
    delays: list[float] = []
    began = next_look = time.monotonic()
    is_done = False
    while (now := time.monotonic()) < began + seconds or len(delays) < len(sent):
        if now > began + seconds + _PATIENCE_S:
            raise TimeoutError(f"{len(sent) - len(delays)} records were not shipped in {_PATIENCE_S:.0f} s")
        while now < began + seconds and len(sent) < (now - began) * _RECORDS_A_SECOND:
            for log in logs:
                log.log_step(first + len(sent), train_loss=1.0 / (1 + len(sent)), lr=1e-4, grad_norm=1.0)
            sent.append(time.monotonic())
        if not is_done and now > began + seconds / 4:
            is_done = True
            at_a_quarter()
        if now >= next_look:
            seen = int(float(ask.query(query).replace(b"\\N", b"0")))
            now = time.monotonic()
            next_look = now + _LOOK_EVERY_S
            delays += [now - logged for logged in sent[len(delays) : max(0, seen - first + 1)]]
        time.sleep(0.005)
    return delays


@contextmanager
def _shipping(
    address: Address, count: int = 1, folder: Path | None = None
) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """Start shippers of one directory, each but the first as a node of its own."""
    with _folder() as place, ExitStack() as stack:
        logs = folder or place / "logs"
        logs.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "toolkit.telemetry.cli", "ship", str(logs), "--to", str(address)]
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
        wait_until(lambda: all(b"shipping" in file.read_bytes() for file in said), _PATIENCE_S)
        yield logs, shippers


def _logger(logs: Path) -> TelemetryLogger:
    log = TelemetryLogger(uuid.uuid4().hex, log_dir=logs, log_every=1, system=False, quiet=True)
    log.log_start()
    return log


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-ship-", ignore_cleanup_errors=True) as place:
        yield Path(place)
