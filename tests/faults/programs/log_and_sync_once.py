"""Logs until a line comes, and syncs once, at a given step.

python log_and_sync_once.py LOG_DIR STEP
"""

from __future__ import annotations

import os
import sys
import threading
import time

from tests.faults.child_program import Acknowledged, SlowestCall, TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, sync_interval=0.2)
log.log_start()
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
slowest = SlowestCall()
lines = []
threading.Thread(target=lambda: lines.append(sys.stdin.readline()), daemon=True).start()
step = 0
while not lines:
    slowest.of(log.log_step, step, train_loss=1.0, x=step)
    if step == int(sys.argv[2]):
        assert log.sync()
    acknowledged.set(step)
    step += 1
    time.sleep(0.002)
log.close()
print(f"slowest={slowest.seconds}")
sys.exit(7)
