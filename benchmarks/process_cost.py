"""What a logger costs its process: the import, opening it, processor time per record, memory, threads, processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.child import ROOT, measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, OURS, PEERS, TENSORBOARD, TRACKIO, WANDB, vary
from benchmarks.report import Claim, Report

_IMPORTED = {
    OURS.name: "toolkit.telemetry.TelemetryLogger",
    TRACKIO.name: "trackio.init",
    WANDB.name: "wandb.init",
    TENSORBOARD.name: "torch.utils.tensorboard.SummaryWriter",
}
"""What a script imports to log; a lazy package shows its cost only when the name is used."""
_PACED = 600
_PAUSE_S = 0.005
"""Steps of about 5 ms: the first three seconds of a run, in which its threads begin their work."""
_MB = 1e6
_LIMITS = {
    "import_ms": ("importing TelemetryLogger", 90.0, " ms"),
    "open_ms": ("opening a logger", 60.0, " ms"),
    "cpu_us": ("processor time of a record in a burst", 35.0, " µs"),
    "added_mb": ("memory added by a started logger", 15.0, " MB"),
    "burst_mb": ("memory that a burst adds to that", 15.0, " MB"),
    "threads": ("threads of one logger", 4.0, ""),
    "processes": ("child processes", 0.0, ""),
    "mean_of_p50": ("mean of the calls in the first seconds against their median", 1.2, "x"),
    "share": ("share of these steps on the caller's thread", 0.7, " %"),
}


def build(options: Options) -> Report:
    """Measure every contender in its own processes."""
    rounds, burst = (2, 2000) if options.quick else (5, 20_000)
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    imports: dict[str, list[float]] = {}
    for number in range(rounds):
        say(f"import, round {number + 1} of {rounds}")
        for contender in contenders:
            if contender.name in _IMPORTED:
                imports.setdefault(contender.name, []).append(time_import(_IMPORTED[contender.name]))
    figures: dict[str, dict[str, float]] = {}
    for contender in contenders:
        say(f"its process: {contender.title}")
        # Slow ones get fewer records, not a longer benchmark.
        records = burst // 4 if contender in (WANDB, TENSORBOARD) else burst
        figures[contender.name] = measure_in_child(costs_of, contender.name, records)
        if contender.name in imports:
            figures[contender.name]["import_ms"] = statistics.median(imports[contender.name])
    ours = figures.get(OURS.name, {})
    shown = (
        *("import_ms", "open_ms", "cpu_us", "added_mb", "helpers_mb", "burst_mb", "threads", "processes"),
        *("p50_us", "mean_us", "share"),
    )
    return Report(
        name="process_cost",
        title="What a logger costs its process",
        columns=[
            *("logger", "import ms", "open ms", "CPU µs per record", "MB", "MB in helpers"),
            *("MB more in a burst", "threads", "processes", "call p50 µs", "mean µs", "% of the step"),
        ],
        rows=[
            [
                contender.title,
                *(f"{found[name]:.2f}".removesuffix(".00") if name in found else "-" for name in shown),
            ]
            for contender in contenders
            for found in [figures[contender.name]]
        ],
        figures=figures,
        claims=[
            Claim(text=text, measured=ours[name], limit=limit, unit=unit)
            for name, (text, limit, unit) in _LIMITS.items()
            if name in ours
        ],
        notes=[
            f"MB: what is added by opening it and {_PACED} steps, one every 5 ms, its imports included",
            f"call, % of the step: these {_PACED} calls, and the processor time of the caller's thread in them",
            f"CPU: of all threads and helpers in a burst of {burst:,} records (W&B, TensorBoard: a quarter) and close",
            *notes,
        ],
    )


def time_import(dotted: str) -> float:
    """Return the milliseconds that importing `dotted` takes in a fresh interpreter."""
    module, _, name = dotted.rpartition(".")
    code = (
        f"import time; began = time.perf_counter()\nfrom {module} import {name}\n"
        "print((time.perf_counter() - began) * 1e3)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(finished.stdout.split()[-1])


def costs_of(folder: Path, name: str, records: int) -> dict[str, float]:
    """Return what opening contender `name`, steps at the pace of a training, and then a burst of them cost."""
    process = psutil.Process()
    memory, threads = process.memory_info().rss, process.num_threads()
    began = time.perf_counter()
    logger = ALL[name].open(folder)
    found = {"open_ms": (time.perf_counter() - began) * 1e3}
    took, on_thread, steps_began = [], 0.0, time.perf_counter()
    for step in range(_PACED):
        vary()
        called, thread = time.perf_counter(), time.thread_time()
        logger.log(step)
        on_thread += time.thread_time() - thread
        took.append(time.perf_counter() - called)
        time.sleep(_PAUSE_S)
    p50, mean = statistics.median(took), statistics.fmean(took)
    found |= {"p50_us": p50 * 1e6, "mean_us": mean * 1e6, "mean_of_p50": mean / p50}
    found["share"] = on_thread / (time.perf_counter() - steps_began) * 100
    # Samplers and mirrors start on their own threads.
    time.sleep(1.5)
    helpers = process.children(recursive=True)
    found |= {
        "added_mb": (process.memory_info().rss - memory) / _MB,
        "helpers_mb": sum(helper.memory_info().rss for helper in helpers) / _MB,
        "threads": process.num_threads() - threads,
        "processes": len(helpers),
    }
    before = _cpu_s()
    for step in range(_PACED, _PACED + records):
        vary()
        logger.log(step)
    found["burst_mb"] = (process.memory_info().rss - memory) / _MB - found["added_mb"]
    # A helper process is gone after close, so what it used by then is counted before.
    before_close = _cpu_s()
    own = time.process_time()
    logger.close()
    closing = max(time.process_time() - own, _cpu_s() - before_close)
    return {**found, "cpu_us": (before_close - before + closing) / records * 1e6}


def _cpu_s() -> float:
    """Return the processor time of this process and its children so far."""
    spent = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            spent += sum(child.cpu_times()[:2])
    return spent


if __name__ == "__main__":
    run_alone(build)
