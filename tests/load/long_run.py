"""One run with very many records: logged, killed, repaired, read, examined, its ledger computed, and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tests.leftovers import journals_of_runs_below
from tests.project.markdown import ROOT
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.table.columns import WITHOUT_ROWS

_MB = 1024 * 1024
_POINTS = 8
_FLUSH_EVERY = 2_000
_EVAL_EVERY = 1_000
_SPAN_EVERY = 100


def log_many(folder: Path, records: int) -> dict[str, Any]:
    """Log about `records` records; return the resources of the process over time.

    Start it through `measure`, which reads the figures it prints and then kills it.
    """
    from toolkit.telemetry import TelemetryLogger

    process = psutil.Process()
    log = TelemetryLogger("long", log_dir=folder, log_every=1, resume=True)
    points: list[dict[str, float]] = []
    every = max(1, records // _POINTS)
    for step in range(records):
        log.log_step(step, train_loss=2.0 / (1.0 + step / 1e4), lr=1e-4, grad_norm=0.5 + step % 7)
        if step % _SPAN_EVERY == 0:
            with log.span("validation", part=step):
                pass
        if step % _EVAL_EVERY == 0:
            log.log_eval(step, val_loss=1.0 / (1.0 + step))
        if step % _FLUSH_EVERY == _FLUSH_EVERY - 1:
            # A tight loop outruns any disk; a real run does not.
            log.flush()
        if (step + 1) % every == 0:
            points.append({"records": step + 1, **held_by(process)})
    return {"points": points}


def held_by(process: psutil.Process) -> dict[str, float]:
    """Return the memory, descriptors and threads of a process."""
    with process.oneshot():
        return {
            "rss_mb": process.memory_info().rss / _MB,
            "files": float(process.num_fds()),
            "threads": float(process.num_threads()),
        }


def log_and_be_killed(root: Path, records: int, *, timeout_s: float = 3000.0) -> dict[str, Any]:
    """Log `records` in a child process and kill it; return its figures."""
    import json

    source = (
        "import json, sys; from pathlib import Path; from tests.load.long_run import log_many;"
        "print('FIGURES', json.dumps(log_many(Path(sys.argv[1]), int(sys.argv[2]))), flush=True);"
        "import time; time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", source, str(root), str(records)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout is not None
        lines = (line for line in child.stdout if line.startswith("FIGURES "))
        figures: dict[str, Any] = json.loads(next(lines).removeprefix("FIGURES "))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout_s)
        if child.stdout is not None:
            child.stdout.close()
    return figures


def count_records(path: Path) -> dict[str, Any]:
    """Read a record file in blocks, and summarise it."""
    cursor = Cursor()
    found = {"records": 0, "with_rows": 0, "steps": 0, "bad": 0, "out_of_order": 0}
    seq = -1
    while True:
        chunk = read_from(path, cursor)
        found["bad"] += chunk.bad_count
        for record in chunk.records:
            found["records"] += 1
            found["with_rows"] += record["event"] not in WITHOUT_ROWS
            found["steps"] += record["event"] == "step"
            found["out_of_order"] += record["seq"] != seq + 1
            seq = record["seq"]
        if chunk.cursor.offset == cursor.offset:
            return found
        cursor = chunk.cursor


def use(root: Path, records: int) -> dict[str, Any]:
    """Do everything people do with a killed run, once each; return the times."""
    from toolkit.telemetry import TelemetryLogger
    from toolkit.telemetry.diagnostics.history import diagnose
    from toolkit.telemetry.runs.sources.local_store import LocalStore
    from toolkit.telemetry.timing.history import read_run_time

    folder = next(path for path in root.iterdir() if path.is_dir())
    process = psutil.Process()
    took: dict[str, float] = {}
    held: dict[str, float] = {}

    def timed(name: str, call: Any) -> Any:
        cpu = time.process_time()
        answer = call()
        took[f"{name}_cpu_s"] = time.process_time() - cpu
        held[f"{name}_mb"] = process.memory_info().rss / _MB
        return answer

    timed("repair", lambda: repair_run(folder))
    counted = timed("read", lambda: count_records(folder / METRICS_JSONL))
    with open(folder / METRICS_CSV, "rb") as table:
        rows = sum(1 for _ in table) - 1
    store = LocalStore([root], cache_dir=root.parent / "cache")
    key = store.list_runs().cards[0].key
    health = timed("load", lambda: _until_all_is_read(store, key))
    series = store.series(key, "train_loss")
    fresh = LocalStore([root], cache_dir=root.parent / "cache")
    store.wait_until_saved(60.0)
    timed("load_again", lambda: _until_all_is_read(fresh, key))
    diagnosis = timed("doctor", lambda: diagnose(folder))
    timed("ledger", lambda: read_run_time(folder))

    def go_on() -> int:
        log = TelemetryLogger("long", log_dir=root, log_every=1, resume=True, system=False)
        log.log_step(records, train_loss=0.1)
        assert log.run_folder is not None
        here = log.run_folder.name
        log.close()
        return int(here == folder.name)

    resumed = timed("resume", go_on)
    after = count_records(folder / METRICS_JSONL)
    return {
        "counted": counted,
        "rows": rows,
        "points_in_chart": series.total,
        "points_drawn": series.drawn,
        "dashboard_records": health.records,
        "doctor_records": diagnosis.records,
        "resumed_in_place": resumed,
        "after_resume": after,
        "left_over": len(journals_of_runs_below(root)),
        "took": took,
        "held": held,
    }


def measure(folder: Path, records: int) -> dict[str, Any]:
    """Return the figures of a run of `records` steps, from its first record to its second session."""
    root = folder / "logs"
    return {"steps": records, "logging": log_and_be_killed(root, records), "use": use(root, records)}


def _until_all_is_read(store: Any, key: str) -> Any:
    deadline = time.monotonic() + 600.0
    while True:
        health = store.refresh(key, wait_s=5.0)
        if not health.bytes_pending:
            return health
        if time.monotonic() > deadline:
            raise TimeoutError("the log was not read to its end within ten minutes")
