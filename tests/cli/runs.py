"""Run folders for the tests of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.telemetry import TelemetryLogger


def write_run(log_dir: Path, name: str, losses: list[float], **options: Any) -> Path:
    """Write a finished run with the real logger, one step for each loss."""
    with TelemetryLogger(name, log_dir=log_dir, log_every=1, system=False, **options) as log:
        for step, loss in enumerate(losses, start=1):
            log.log_step(step, train_loss=loss, accuracy=1 - loss)
    return log_dir / name


def write_table(path: Path, losses: list[float]) -> Path:
    """Write a CSV file as another tool does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("step,train/loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses)))
    return path
