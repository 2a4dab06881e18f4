"""Trains on several ranks, of which the last one first has a NaN loss and then kills itself.

torchrun train_with_a_killed_rank.py LOG_DIR
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from toolkit.telemetry import TelemetryLogger

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with TelemetryLogger("run", log_dir=Path(sys.argv[1]), ranks="all", csv=False, close_timeout=60.0) as log:
    for step in range(1, 1000):
        inputs = torch.randn(4, 8)
        if rank == ranks - 1 and step == 43:
            inputs[0, 0] = torch.nan
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.log_step(step, train_loss=float(loss.detach()))
        if rank == ranks - 1 and step == 60:
            log.flush(60.0)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
