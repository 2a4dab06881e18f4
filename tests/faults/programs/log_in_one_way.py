"""Logs in the way that is asked for until it is killed, and notes how many records of each series were acknowledged.

python log_in_one_way.py LOG_DIR NAME WAY ACKNOWLEDGED_AT
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
import time

from tests.faults.child_program import TelemetryLogger

log_dir, name, way, acknowledged_at = sys.argv[1:]
done = memoryview(mmap.mmap(os.open(acknowledged_at, os.O_RDWR), 64)).cast("q")
options = {"log_every": 1, "system": way == "paced", "csv": way not in ("fast", "threads")}
log = TelemetryLogger(name, log_dir=log_dir, **options)


def log_series(series, text, pause_every):
    for number in range(60_000):
        log.log_event("mine", series=series, number=number, text=text)
        done[series] = number + 1
        if number % pause_every == 0:
            time.sleep(0.001)


if way == "threads":
    for series in range(1, 4):
        threading.Thread(target=log_series, args=(series, "short", 5), daemon=True).start()
if way in ("threads", "large"):
    log_series(0, *(("short", 5) if way == "threads" else ("x" * 30_000, 1)))
wide = {f"metric_{number}": 0.5 for number in range(60 if way == "wide" else 2)}
for number in range(300 if way == "closing" else 60_000):
    if way == "spans":
        with log.span("forward"), log.span("attention"):
            pass
    log.log_step(number, train_loss=1.0 / (number + 1), twice=number * 2, **wide)
    done[0] = number + 1
    if number % (200 if way == "fast" else 7) == 0:
        time.sleep(0.001)
done[7] = 1
log.close()
done[7] = 2
signal.pause()
