"""Trains on two ranks: once rank 0 alone writes, once all ranks do.

python train_on_two_ranks.py LOG_DIR
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as distributed

from tests.faults.child_program import TelemetryLogger

# Without a launcher the ranks meet in a file.
is_alone = os.environ["MASTER_PORT"] == "29511"
met = (
    {"init_method": f"file://{sys.argv[1]}.met", "rank": int(os.environ["RANK"]), "world_size": 2}
    if is_alone
    else {}
)
distributed.init_process_group("gloo", **met)
rank = distributed.get_rank()
for ranks in ("zero", "all"):
    with TelemetryLogger(
        "run", log_dir=f"{sys.argv[1]}/{ranks}", log_every=1, ranks=ranks, system=False
    ) as log:
        for step in range(20):
            loss = torch.tensor(float(rank + step))
            distributed.all_reduce(loss)
            log.log_step(step, train_loss=loss, mine=rank)
        distributed.barrier()
    # In one piece, or the words of both ranks come between each other.
    os.write(1, f"rank {rank} reached {loss.item()}\n".encode())
distributed.destroy_process_group()
