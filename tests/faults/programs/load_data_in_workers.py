"""Loads data in worker processes that hold the logger.

python load_data_in_workers.py LOG_DIR METHOD EPOCHS
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.child_program import TelemetryLogger


class Numbers(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.log.log_step(1_000_000 + index, train_loss=2.0)
        self.log.log_event("from_a_worker", index=index)
        return torch.tensor(float(index))


if __name__ == "__main__":
    log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
    workers = 2 if sys.argv[2] == "fork" else 1
    loader = DataLoader(Numbers(log), batch_size=4, num_workers=workers, multiprocessing_context=sys.argv[2])
    total, step = 0.0, 0
    for _ in range(int(sys.argv[3])):
        for batch in loader:
            total += batch.sum().item()
            log.log_step(step, train_loss=total)
            step += 1
    log.close()
    print(f"total={total}")
    sys.exit(7)
