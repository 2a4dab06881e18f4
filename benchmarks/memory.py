"""How much memory a logger takes, and whether that keeps growing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.contenders import ALL, BARE, OURS, PEERS
from benchmarks.report import Claim, Report

_MB = 1e6


def build(options: Options) -> Report:
    """Measure what a started logger adds to a process, then how ours grows over a long run."""
    contenders, notes = options.choose((BARE, OURS, *PEERS))
    figures: dict[str, Any] = {}
    for contender in contenders:
        say(f"memory: {contender.title}")
        figures[contender.name] = measure_in_child(memory_added, contender.name)

    claims = []
    if OURS.name in figures:
        ours = figures[OURS.name]
        claims.append(
            Claim(text="memory added by a started logger", measured=ours["added_mb"], limit=15.0, unit=" MB")
        )
        records = 50_000 if options.quick else 1_000_000
        say(f"memory: {records:,} records")
        growth = measure_in_child(memory_over_time, records)
        ours["over_time"] = growth
        claims.append(
            Claim(
                text=f"growth from record {growth['records'][0]:,} to {growth['records'][-1]:,}",
                measured=growth["rss_mb"][-1] - growth["rss_mb"][0],
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
        title="Memory added to the process after import, start and 200 steps (helper processes separately)",
        columns=["logger", "MB", "in helper processes MB"],
        rows=[
            [
                contender.title,
                f"{figures[contender.name]['added_mb']:.1f}",
                f"{figures[contender.name]['helpers_mb']:.1f}",
            ]
            for contender in contenders
        ],
        figures=figures,
        claims=claims,
        notes=notes,
    )


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
