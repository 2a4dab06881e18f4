"""Trains for twenty steps from a YAML, and ends in the way that is asked for.

python train_and_send_messages.py YAML leave|crash
"""

from __future__ import annotations

import sys

import yaml

from tests.faults.child_program import TelemetryLogger
from tests.waiting import wait_until

log = TelemetryLogger.from_config(yaml.safe_load(sys.argv[1]))
log.log_start(training={"max_steps": 20})


def is_reported():
    log.flush()
    return b'"event":"message"' in (log.run_folder / "metrics.jsonl").read_bytes()


wait_until(is_reported)
for step in range(1, 21):
    log.log_step(step, train_loss=1.0 / step, lr=1e-4)
    if step == 12 and sys.argv[2] == "crash":
        raise RuntimeError("CUDA out of memory in /home/jane/secret-project/train.py")
