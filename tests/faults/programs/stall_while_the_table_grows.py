"""Adds a column to the table, and stalls while it is written again.

python stall_while_the_table_grows.py LOG_DIR writing|renaming
"""

from __future__ import annotations

import os
import sys
import threading
import time

from tests.faults.child_program import Acknowledged, TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
for step in range(10):
    log.log_step(step, train_loss=1.0, metric_0=step)
    acknowledged.set(step)
log.flush(60)
replace, write = os.replace, os.write
stall_at = sys.argv[2]


def stall():
    print("stalled", flush=True)
    threading.Event().wait()


def replace_or_stall(source, target, **kwargs):
    if stall_at == "renaming" and str(target).endswith("metrics.csv"):
        stall()
    replace(source, target, **kwargs)


def write_or_stall(descriptor, data):
    if stall_at == "writing" and ".metrics.csv." in os.readlink(f"/proc/self/fd/{descriptor}"):
        write(descriptor, bytes(data)[: len(data) // 2])
        stall()
    return write(descriptor, data)


os.replace, os.write = replace_or_stall, write_or_stall
step = 10
while True:
    log.log_step(step, train_loss=1.0, **{f"metric_{step // 10}": step})
    acknowledged.set(step)
    step += 1
    time.sleep(0.002)
