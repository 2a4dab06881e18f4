"""The cost of the detectors: time per record, a long history, and memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report, median_and_quartiles

_MB = 1e6
_HISTORY_S = 15.0
"""Of a million records: 10 µs of detectors, and some 4 of reading."""
_BATCH = 50
"""Records per batch of the writer."""


def build(options: Options) -> Report:
    """Measure the examiner alone, then whole histories from their files."""
    few, many = (10_000, 50_000) if options.quick else (100_000, 1_000_000)
    rounds = 1 if options.quick else 5
    takes = []
    for number in range(rounds):
        say(f"diagnose: {few:,} records through every detector, round {number + 1} of {rounds}")
        takes.append(measure_in_child(cost_of_taking, few))
    say(f"diagnose: a history of {many:,} records")
    history = measure_in_child(cost_of_history, many)

    figures: dict[str, Any] = {"records": many, "take": takes, "history": history}
    take_us, take_low, take_high = median_and_quartiles([each["take_us"] for each in takes])
    parse_us, parse_low, parse_high = median_and_quartiles([each["parse_us"] for each in takes])
    seconds = {name: history[name] * 1_000_000 / many for name in ("wall_s", "cpu_s")}
    growth = history["rss_mb"][-1] - history["rss_mb"][0]
    return Report(
        name="diagnose_cost",
        title=f"Detectors: processor time per record, and {many:,} records of history",
        columns=["what", "median", "quartiles"],
        rows=[
            [
                "every detector, a step of ten scalars",
                f"{take_us:.2f} µs",
                f"{take_low:.2f} … {take_high:.2f}",
            ],
            ["reading and parsing its line", f"{parse_us:.2f} µs", f"{parse_low:.2f} … {parse_high:.2f}"],
            [f"{many:,} records from their file, wall time", f"{history['wall_s']:.2f} s", ""],
            [f"{many:,} records from their file, processor time", f"{history['cpu_s']:.2f} s", ""],
            ["memory of the process at the end", f"{history['rss_mb'][-1]:.1f} MB", ""],
        ],
        figures=figures,
        claims=[
            Claim(text="a record through every detector", measured=take_us, limit=10.0, unit=" µs"),
            Claim(
                text="1,000,000 records of history",
                measured=seconds["wall_s"],
                limit=_HISTORY_S,
                unit=" s",
                # Other processes used the CPU for longer than this took.
                too_noisy=seconds["cpu_s"] <= _HISTORY_S < seconds["wall_s"],
            ),
            Claim(
                text=f"growth from record {history['records'][0]:,} to {history['records'][-1]:,}",
                measured=growth,
                limit=1.0,
                unit=" MB",
            ),
        ],
        notes=[
            "resident MB over time: " + ", ".join(f"{mb:.1f}" for mb in history["rss_mb"]),
            f"findings in the synthetic run without a fault: {history['findings']}",
        ],
    )


def cost_of_taking(folder: Path, records: int) -> dict[str, float]:
    """Return the processor time in µs per parsed record in the examiner, and for reading it."""
    from benchmarks.large_run import write_finished_run
    from toolkit.telemetry.diagnostics.examiner import Examiner
    from toolkit.telemetry.runfolder.layout import METRICS_JSONL
    from toolkit.telemetry.runfolder.reader import blocks_of, records_in

    run = write_finished_run(folder, "made", records)
    began = time.process_time()
    found = [record for block in blocks_of(run / METRICS_JSONL) for record in records_in(block)[0]]
    parsed = time.process_time()
    examiner = Examiner()
    # Built before the clock starts: a writer already has its batches.
    batches = [found[first : first + _BATCH] for first in range(0, len(found), _BATCH)]
    before = time.process_time()
    for batch in batches:
        examiner.take(batch)
    taken = time.process_time()
    return {
        "take_us": (taken - before) / len(found) * 1e6,
        "parse_us": (parsed - began) / len(found) * 1e6,
    }


def cost_of_history(folder: Path, records: int) -> dict[str, Any]:
    """Return the seconds to examine a run of `records` steps from its folder, and the resident MB over time."""
    from benchmarks.large_run import write_finished_run
    from toolkit.telemetry.diagnostics.history import diagnose

    run = write_finished_run(folder, "made", records)
    process = psutil.Process()
    found: dict[str, list[float]] = {"records": [], "rss_mb": []}
    due = records // 10

    def look(count: int) -> None:
        nonlocal due
        if count >= due:
            due += records // 10
            found["records"].append(count)
            found["rss_mb"].append(process.memory_info().rss / _MB)

    wall, cpu = time.perf_counter(), time.process_time()
    diagnosis = diagnose(run, on_records=look)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall_s": wall, "cpu_s": cpu, "findings": len(diagnosis.findings), **found}


if __name__ == "__main__":
    run_alone(build)
