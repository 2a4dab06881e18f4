"""How much memory a logger takes, and whether that keeps growing."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, OURS, PEERS, TENSORBOARD, WANDB, vary
from benchmarks.report import Claim, Report

_MB = 1e6
_TIGHT = 20_000
_MANY = 64
_SETTLED_S = 12.0
_WARM = 2
"""Tenths of a long run in which caches are filled, and modules imported in the background."""
_IDLE_S = 10.0
_LOOK_S = 0.002
_IN_MEMORY = Path("/dev/shm")


def build(options: Options) -> Report:
    """Measure what a started logger adds to a process, then how ours grows over a long run."""
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    figures: dict[str, Any] = {}
    for contender in contenders:
        say(f"memory: {contender.title}")
        figures[contender.name] = measure_in_child(memory_added, contender.name)
        tight = 2000 if options.quick else _TIGHT // 4 if contender in (WANDB, TENSORBOARD) else _TIGHT
        figures[contender.name] |= measure_in_child(peak_in_tight_loop, contender.name, tight)

    claims = []
    if OURS.name in figures:
        ours = figures[OURS.name]
        claims.append(
            Claim(text="memory added by a started logger", measured=ours["added_mb"], limit=15.0, unit=" MB")
        )
        say("memory: a disk that hangs")
        ours |= measure_in_child(memory_after_a_hung_disk)
        for key, text, limit_mb in (
            ("peak_mb", "peak of a tight loop", 15.0),
            # Some 6 MB of records have waited in memory, in the logger's 15.
            ("after_hung_mb", "memory after a disk that hung came back", 25.0),
        ):
            if ours[key] is not None:
                claims.append(Claim(text=text, measured=ours[key], limit=limit_mb, unit=" MB"))
        # A second of an idle logger: one look at its files, one at the machine, and the writer's at its file.
        for loggers, threads, wakes in ((1, 3, 4.0), (_MANY, 16, 100.0)):
            say(f"memory: {loggers} open loggers")
            found = ours[f"open_{loggers}"] = measure_in_child(open_loggers, loggers)
            found["wake_ups"] = measure_in_child(wake_ups, loggers)
            disk_waits = found["switches"] - found["wake_ups"]
            notes.append(
                f"{loggers} open {'loggers' if loggers > 1 else 'logger'}: {found['threads']} threads more, at most "
                f"{found['most_threads']} while they are opened; while idle {found['wake_ups']:.1f} wake-ups a second "
                f"and {disk_waits:.1f} waits for the disk; a process of {found['rss_mb']:.0f} MB"
            )
            text = f"wake-ups a second with so many idle loggers: {loggers}"
            claims.append(Claim(text=text, measured=found["wake_ups"], limit=wakes, unit=""))
            text = f"threads more with so many open loggers: {loggers}"
            claims.append(Claim(text=text, measured=found["threads"], limit=threads, unit=""))
        text = f"a process with {_MANY} open loggers"
        claims.append(Claim(text=text, measured=found["rss_mb"], limit=120.0, unit=" MB"))
        records = 50_000 if options.quick else 1_000_000
        say(f"memory: {records:,} records")
        growth = measure_in_child(memory_over_time, records)
        ours["over_time"] = growth
        claims.append(
            Claim(
                text=f"growth from record {growth['records'][_WARM]:,} to {growth['records'][-1]:,}",
                measured=growth["rss_mb"][-1] - growth["rss_mb"][_WARM],
                limit=1.0,
                unit=" MB",
            )
        )
        notes.append(
            "resident MB over time: "
            + ", ".join(f"{mb:.1f}" for mb in growth["rss_mb"])
            + f" (every {growth['records'][1] - growth['records'][0]:,} records)"
        )
    return Report(
        name="memory",
        title="Memory added to the process after import, start and 200 steps (helper processes separately), "
        "and the peak of a tight loop",
        columns=["logger", "MB", "in helper processes MB", "peak MB"],
        rows=[
            [
                contender.title,
                f"{figures[contender.name]['added_mb']:.1f}",
                f"{figures[contender.name]['helpers_mb']:.1f}",
                _or_unknown(figures[contender.name]["peak_mb"]),
            ]
            for contender in contenders
        ],
        figures=figures,
        claims=claims,
        notes=[
            f"peak: {_TIGHT:,} records in a tight loop and the close, in a process that has imported torch",
            "W&B and TensorBoard: a quarter of them",
            *notes,
        ],
    )


def _or_unknown(megabytes: float | None) -> str:
    return "-" if megabytes is None else f"{megabytes:.1f}"


def memory_added(folder: Path, name: str) -> dict[str, float]:
    """Return the MB that importing, starting and using contender `name` adds to the process."""
    process = psutil.Process()
    before = process.memory_info().rss
    logger = ALL[name].open(folder)
    for step in range(200):
        logger.log(step)
        time.sleep(0.005)
    # Samplers and mirrors start on their own threads.
    time.sleep(1.5)
    added = process.memory_info().rss - before
    helpers = sum(child.memory_info().rss for child in process.children(recursive=True))
    logger.close()
    return {"added_mb": added / _MB, "helpers_mb": helpers / _MB}


def wake_ups(folder: Path, count: int) -> float:
    """Return how often `count` idle loggers wake up in a second: in shared memory, where they wait for no disk."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else folder) as name:
        return open_loggers(Path(name), count)["switches"]


def open_loggers(folder: Path, count: int) -> dict[str, float]:
    """Return the threads that `count` idle loggers have started, and the memory and switches of their process."""
    from toolkit.telemetry import TelemetryLogger

    process = psutil.Process()
    tasks = Path(f"/proc/{process.pid}/task")
    before = most = process.num_threads()
    loggers = [TelemetryLogger(f"r{number}", log_dir=folder) for number in range(count)]
    for logger in loggers:
        logger.log_step(0, train_loss=1.0)
    # Until the environment has been looked at, and threads that are no longer needed have ended.
    settled = time.monotonic() + _SETTLED_S
    while time.monotonic() < settled:
        most = max(most, process.num_threads())
        time.sleep(_LOOK_S)
    switched = _switches(tasks)
    time.sleep(_IDLE_S)
    found = {
        "threads": process.num_threads() - before,
        "most_threads": most - before,
        "rss_mb": process.memory_info().rss / _MB,
        "switches": (_switches(tasks) - switched) / _IDLE_S,
    }
    for logger in loggers:
        logger.close()
    return found


def _switches(tasks: Path) -> int:
    """Return how often the threads in the background have waited for something so far; on Linux only."""
    counted = 0
    for status in tasks.glob("*/status"):
        with contextlib.suppress(OSError):
            if status.parent.name != str(threading.main_thread().native_id):
                counted += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return counted


def peak_in_tight_loop(folder: Path, name: str, records: int) -> dict[str, float | None]:
    """Return the MB by which the process grows at most, from opening contender `name` until it is closed."""
    _import_torch()
    before = _forget_peak()
    logger = ALL[name].open(folder)
    for step in range(records):
        vary()
        logger.log(step)
    logger.close()
    return {"peak_mb": None if before is None else (_peak() - before) / _MB}


def memory_after_a_hung_disk(folder: Path) -> dict[str, float | None]:
    """Return the MB that our logger has added once a disk that hung for seconds has taken all records."""
    from toolkit.telemetry.logger.writing.record_appender import RecordFile

    _import_torch()
    before = _forget_peak()
    is_back = threading.Event()
    write = RecordFile.write

    def hang(self: RecordFile) -> None:
        is_back.wait()
        write(self)

    logger = ALL[OURS.name].open(folder)
    RecordFile.write = hang  # type: ignore[method-assign]
    for step in range(_TIGHT):
        vary()
        logger.log(step)
        time.sleep(0.0001)
    is_back.set()
    logger.telemetry.flush(60.0)  # type: ignore[attr-defined]
    # Mirrors follow the file in turns of half a second.
    time.sleep(1.5)
    after = psutil.Process().memory_info().rss
    logger.close()
    return {"after_hung_mb": None if before is None else (after - before) / _MB}


def _import_torch() -> None:
    """Import what a training has imported anyway; without it the process grows by parts of the standard library."""
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def _forget_peak() -> int | None:
    """Have the kernel count the peak from now on; return the memory now, or None where it does not count."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nVmHWM:")[2].split()[0]) * 1024


def memory_over_time(folder: Path, records: int) -> dict[str, list[float]]:
    """Return the resident MB of our logger after each tenth of `records` steps."""
    from toolkit.telemetry import TelemetryLogger

    process = psutil.Process()
    found: dict[str, list[float]] = {"records": [], "rss_mb": []}
    with TelemetryLogger("long", log_dir=folder, log_every=1) as log:
        for step in range(1, records + 1):
            log.log_step(step, train_loss=1.0 / step, lr=1e-4, grad_norm=0.5 + step % 7)
            if step % 2000 == 0:
                # A tight loop outruns any disk; a real run does not.
                log.flush()
            if step % (records // 10) == 0:
                found["records"].append(step)
                found["rss_mb"].append(process.memory_info().rss / _MB)
    return found


if __name__ == "__main__":
    run_alone(build)
