"""Runs of a fleet, written by the real logger: `python -m benchmarks.fleet_runs LOG_DIR FIRST COUNT`."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

from toolkit.telemetry import TelemetryLogger

_PROJECTS = ("vision", "speech", "language")
_STEPS = 60


def _log_run(log_dir: Path, number: int) -> None:
    """Log one run of a sweep; every 40th fails, and every 25th diverges."""
    draw = random.Random(number)
    rate = 10 ** draw.uniform(-5, -2)
    best = 0.1 + 0.2 * abs(math.log10(rate) + 3.5)
    log = TelemetryLogger(
        f"sweep-{number:05}",
        log_dir=log_dir,
        log_every=1,
        project=_PROJECTS[number % len(_PROJECTS)],
        perf_tag=f"lr{-math.floor(math.log10(rate))}",
        system=False,
        diagnostics=False,
    )
    log.log_start(config={"lr": rate, "seed": number, "batch_size": 2 ** draw.randint(2, 6)})
    for step in range(_STEPS):
        loss = best + 2.0 * math.exp(-step / 15) + draw.gauss(0, 0.02)
        if number % 25 == 24 and step > _STEPS // 2:
            loss = math.nan
        log.log_step(step, train_loss=loss, lr=rate, grad_norm=math.exp(draw.gauss(0, 0.3)))
        if step % 20 == 19:
            log.log_eval(step, val_loss=best * 1.1 + 2.2 * math.exp(-step / 15))
    log.close("failed" if number % 40 == 39 else "finished")


def main(log_dir: str, first: str, count: str) -> None:
    """Log `count` runs from number `first` on."""
    for number in range(int(first), int(first) + int(count)):
        _log_run(Path(log_dir), number)


if __name__ == "__main__":
    main(*sys.argv[1:])
