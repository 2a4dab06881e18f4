"""Trains on several ranks: none is slow, then the last one in its data, then rank 0 in its computing.

torchrun train_with_a_slow_rank.py LOG_DIR
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from toolkit.telemetry import TelemetryLogger

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def train(name, slow_rank, slow_part):
    options = {"log_every": 1, "ranks": "all", "system": False, "csv": False, "close_timeout": 60.0}
    with TelemetryLogger(name, log_dir=folder, **options) as log:
        took = 0.02

        def work(part):
            # Three times a whole step, however slow the machine is.
            slept = 3.0 * took if (rank, part) == (slow_rank, slow_part) else 0.0
            time.sleep(0.005 + slept)
            return slept

        for step in range(1, 56):
            began = time.monotonic()
            with log.training.training_iteration():
                with log.training.data_loading():
                    slept = work("data")
                    inputs = torch.randn(4, 8)
                with log.training.forward():
                    slept += work("compute")
                    loss = model(inputs).pow(2).mean()
                with log.training.backward():
                    loss.backward()
                with log.training.optimizer_update():
                    optimizer.step()
                    optimizer.zero_grad()
            took = min(1.0, max(0.02, time.monotonic() - began - slept))
            log.log_step(step, train_loss=float(loss.detach()))
        while rank == 0 and slow_part and b'"straggler"' not in log_file(name).read_bytes():
            time.sleep(0.1)
        dist.barrier()


def log_file(name):
    return folder / name / "metrics.jsonl"


train("clean", None, None)
train("data", ranks - 1, "data")
train("compute", 0, "compute")
dist.destroy_process_group()
