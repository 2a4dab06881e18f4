"""Forks a process that outlives this one, and logs until it is killed.

python leave_a_child_behind.py LOG_DIR
"""

from __future__ import annotations

import os
import sys
import time

from tests.faults.child_program import Acknowledged, TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
print(f"child={child}", flush=True)
step = 0
while True:
    log.log_step(step, train_loss=1.0)
    acknowledged.set(step)
    step += 1
    time.sleep(0.0005)
