"""Logs until it is killed, and notes in a file what a power cut may not take.

Noted are: steps logged; steps that `log.sync()` acknowledged; bytes that a sync of the record file had before it; when.

python log_and_note_syncs.py LOG_DIR NAME NOTED_AT SYNC_INTERVAL
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time

from tests.faults.child_program import TelemetryLogger

log_dir, name, noted_at, sync_interval = sys.argv[1:]
noted = memoryview(mmap.mmap(os.open(noted_at, os.O_RDWR), 32)).cast("q")
fdatasync = os.fdatasync


def noting_fdatasync(descriptor):
    is_record_file = os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl")
    size, began = os.fstat(descriptor).st_size, time.time()
    fdatasync(descriptor)
    if is_record_file and size > noted[2]:
        noted[2], noted[3] = size, int(began * 1e6)


os.fdatasync = noting_fdatasync
log = TelemetryLogger(name, log_dir=log_dir, log_every=1, system=False, sync_interval=float(sync_interval))


def sync_now_and_then():
    while True:
        time.sleep(0.7)
        logged = noted[0]
        # Where the power is gone already, this says so and acknowledges nothing.
        if log.sync():
            noted[1] = logged


threading.Thread(target=sync_now_and_then, daemon=True).start()
for step in range(1_000_000):
    later = {f"metric_{step // 400}": 1.0}
    log.log_step(step, train_loss=1.0, twice=2 * step, **later)
    noted[0] = step + 1
    time.sleep(0.001)
