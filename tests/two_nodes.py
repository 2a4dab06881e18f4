"""A run whose ranks were on two nodes, written by real loggers in this process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.ranks import Rank
from toolkit.telemetry.logger.writing import rank_folder

RUN_ID = "0123456789abcdef"


def write_two_nodes(
    monkeypatch: pytest.MonkeyPatch, first: Path, second: Path, *, steps: int = 30, name: str = "run"
) -> tuple[Path, Path]:
    """Write ranks 0 and 1 on node A into `first`, and 2 and 3 on node B into `second`; return the two folders.

    Rank 3 takes twice as long for a step. The launcher gives the run id, and there is no process group.
    """
    monkeypatch.setattr(rank_folder, "_WAIT_FOR_FOLDER_S", 0.0)
    monkeypatch.setenv("TELEMETRY_RUN_ID", RUN_ID)
    monkeypatch.setenv("MASTER_ADDR", "A")
    loggers = []
    try:
        for rank in range(4):
            monkeypatch.setenv("TELEMETRY_NODE", "A" if rank < 2 else "B")
            log_dir = first if rank < 2 else second
            loggers.append(
                TelemetryLogger(
                    name, log_dir=log_dir, log_every=1, ranks="all", system=False, rank=Rank(rank, 4)
                )
            )
        for step in range(steps):
            for rank, log in enumerate(loggers):
                log.log_step(step, train_loss=1.0 + rank, sec_per_step=2.0 if rank == 3 else 1.0)
        folders = [log.run_folder for log in loggers]
    finally:
        for log in reversed(loggers):
            log.close()
    assert folders[0] == folders[1]
    assert folders[2] == folders[3]
    return folders[0], folders[2]


def bring_together(part: Path, log_dir: Path) -> Path:
    """Move a part into the log directory of its run, as one would copy it from its node; return where it is now."""
    return Path(shutil.move(part, log_dir / part.name))
