"""Logs steps as one rank of several, without torch: one may log NaN, and one waits to be killed.

log_as_a_rank.py LOG_DIR NAN_RANK KILLED_RANK; RANK and WORLD_SIZE as a launcher sets them.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

from toolkit.telemetry import TelemetryLogger

folder, nan_rank, killed_rank = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])
options = {"log_every": 1, "ranks": "all", "system": False, "csv": False}
with TelemetryLogger("run", log_dir=folder, **options) as log:
    log.log_start()
    for step in range(1, 1_000_000):
        is_nan = rank == nan_rank and 5 <= step < 10
        log.log_step(step, train_loss=math.nan if is_nan else 1.0 / step)
        if step == 20:
            log.flush(60.0)
            (folder / f"rank_{rank}").touch()
        if step >= 20 and rank == killed_rank:
            time.sleep(3600.0)
        if (folder / "stop").exists():
            break
        time.sleep(0.02 if step > 20 else 0.001)
