"""What it costs to keep the batches: a call, bytes a sample, and a loop of 10 ms steps with and without."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report, percentile
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.evidence.batches import batches_file

_SIZES: Final = (8, 64, 512)
_STEP_S: Final = 0.01


def build(options: Options) -> Report:
    """Measure calls in a tight loop, and the processor time of whole steps in alternating blocks."""
    calls, blocks, steps = (300, 2, 20) if options.quick else (3000, 10, 50)
    figures: dict[str, Any] = {}
    for size in _SIZES:
        say(f"batches of {size} integers")
        figures[f"{size} integers"] = _ids(size, calls) | _loop(size, blocks, steps)
    rows = [
        [
            name,
            f"{found['p50_us']:.1f}",
            f"{found['p99_us']:.1f}",
            f"{found['bytes']:.2f}",
            f"{found['thread_us']:+.0f}",
            f"{found['cpu_us']:+.0f}",
        ]
        for name, found in figures.items()
    ]
    return Report(
        name="batch_cost",
        title="log.batch: a call, its bytes, and the processor time it adds to a 10 ms step",
        columns=["batch", "µs p50", "µs p99", "bytes a sample", "µs of a step, its thread", "all threads"],
        rows=rows,
        figures=figures,
        claims=[
            Claim(
                text="a call with 512 ids, of a 10 ms step",
                measured=round(figures["512 integers"]["p50_us"], 1),
                limit=100.0,
                unit=" µs",
            ),
            Claim(
                text="bytes a sample, batches of 8",
                measured=round(figures["8 integers"]["bytes"], 2),
                limit=10.0,
                unit="",
            ),
        ],
    )


def _batches(size: int, count: int) -> list[list[int]]:
    choose = random.Random(0)
    return [[choose.randrange(1_000_000) for _ in range(size)] for _ in range(count)]


def _ids(size: int, calls: int) -> dict[str, float]:
    given = _batches(size, calls)
    took = []
    with tempfile.TemporaryDirectory() as folder:
        with TelemetryLogger("run", log_dir=folder, quiet=True) as log:
            for step, ids in enumerate(given):
                began = time.perf_counter()
                log.batch(ids, step=step)
                took.append((time.perf_counter() - began) * 1e6)
                if step % 500 == 499:
                    log.flush()
        written = batches_file(Path(folder) / "run").stat().st_size
    return {
        "p50_us": statistics.median(took),
        "p99_us": percentile(took, 0.99),
        "bytes": written / (size * calls),
    }


def _loop(size: int, blocks: int, steps: int) -> dict[str, float]:
    """Return the processor time that batches add to a step, of its thread and of all: median over pairs of blocks."""
    given = _batches(size, steps)
    added: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        logs = [TelemetryLogger(name, log_dir=folder, quiet=True) for name in ("with", "without")]
        number = 0
        for block in range(blocks + 1):
            spent = []
            for log in logs:
                began = time.thread_time(), time.process_time()
                for ids in given:
                    number += 1
                    if log is logs[0]:
                        log.batch(ids)
                    time.sleep(_STEP_S)
                    log.log_step(number, train_loss=0.5)
                spent.append((time.thread_time() - began[0], time.process_time() - began[1]))
            # The first one describes the machine, in the background.
            if block:
                (here, all_here), (bare, all_bare) = spent
                added.append(((here - bare) / steps * 1e6, (all_here - all_bare) / steps * 1e6))
        for log in logs:
            log.close()
    here, everywhere = (statistics.median(one) for one in zip(*added, strict=True))
    return {"thread_us": here, "cpu_us": everywhere}


if __name__ == "__main__":
    run_alone(build)
