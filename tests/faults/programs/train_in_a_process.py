"""Trains in a process of multiprocessing that returns, raises or exits.

python train_in_a_process.py LOG_DIR METHOD HOW
"""

from __future__ import annotations

import multiprocessing
import sys

from tests.faults.child_program import TelemetryLogger


def train(folder, how):
    log = TelemetryLogger("run", log_dir=folder, log_every=1)
    for step in range(500):
        log.log_step(step, train_loss=1.0)
    if how == "raises":
        raise RuntimeError("no more memory")
    if how == "exits with 3":
        sys.exit(3)


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=train, args=(sys.argv[1], sys.argv[3]))
    process.start()
    process.join()
    sys.exit(process.exitcode)
