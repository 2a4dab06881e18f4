"""Trains on several ranks until the run is to stop, and writes down each rank's last step.

torchrun train_until_stopped.py LOG_DIR RANKS
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from toolkit.telemetry import TelemetryLogger

folder, ranks = sys.argv[1:3]
dist.init_process_group("gloo")
log = TelemetryLogger("together", log_dir=folder, log_every=5, ranks=ranks, close_timeout=60.0)
log.declare_action("stop")
value = torch.ones(1)
stopped_at = None
for step in range(1, 20_000):
    dist.all_reduce(value)
    value /= dist.get_world_size()
    time.sleep(0.01 if dist.get_rank() else 0.012)
    log.log_step(step, train_loss=1.0 / step)
    if log.should_stop:
        stopped_at = step
        break
with open(f"{folder}/stopped-{dist.get_rank()}", "w") as file:
    file.write(str(stopped_at))
log.close()
dist.destroy_process_group()
