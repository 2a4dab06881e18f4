"""Logs with real mirrors, and closes once a condition is true.

python real_mirrors.py LOG_DIR OPTIONS CONDITION
"""

from __future__ import annotations

import os
import sys
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger
from tests.waiting import wait_until

log = TelemetryLogger(
    "run", log_dir=sys.argv[1], log_every=1, close_timeout=2.0, system=False, **eval(sys.argv[2])
)
slowest = SlowestCall()
for step in range(500):
    slowest.of(log.log_step, step, train_loss=1.0 / (step + 1), text="x" * 200)
    if step % 100 == 0:
        time.sleep(0.05)
wait_until(lambda: eval(sys.argv[3]))
began = time.monotonic()
log.close()
print(f"closing={time.monotonic() - began}", flush=True)
print(f"slowest={slowest.seconds}", flush=True)
os._exit(7)  # a thread that hangs in the kernel would keep an exit of the usual kind waiting
