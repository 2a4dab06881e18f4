"""Logs from the destructor of objects that are collected in the middle of calls.

python log_while_destroyed.py LOG_DIR
"""

from __future__ import annotations

import gc
import sys
import time

from tests.faults.child_program import TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)

destroyed = []


class LogsAtItsEnd:
    def __init__(self):
        self.itself = self

    def __del__(self):
        log.log_event("destroyed")
        destroyed.append(1)


gc.set_threshold(7)  # a collection falls into the middle of calls of ours, too
for step in range(1000):
    LogsAtItsEnd()
    log.log_step(step, train_loss=1.0, extra={"a": [step]})
# A collection may be going on in another thread, and this one is then none.
while len(destroyed) < 1000:
    gc.collect()
    time.sleep(0.01)
log.close()
sys.exit(7)
