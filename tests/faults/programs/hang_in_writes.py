"""Logs to a disk that does not answer a write to the records, or to any file of the run, and ends in one of four ways.

python hang_in_writes.py LOG_DIR CLOSE_TIMEOUT STEPS records|folder close|answer|answer_late|stay
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger

log_dir, close_timeout, steps, hung, ending = sys.argv[1:]
answers = threading.Event()
write = os.write


def hanging_write(descriptor, data):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.endswith("metrics.jsonl") if hung == "records" else path.startswith(log_dir):
        answers.wait()
    return write(descriptor, data)


log = TelemetryLogger("run", log_dir=log_dir, log_every=1, close_timeout=float(close_timeout))
log.log_event("before")
log.flush()
os.write = hanging_write
slowest = SlowestCall()
for step in range(int(steps)):
    slowest.of(log.log_step, step, train_loss=1.0, lr=1e-4, grad_norm=0.5)
slowest.of(log.log_event, "after")
print(f"slowest={slowest.seconds}", flush=True)
if ending == "stay":
    signal.pause()
if ending == "answer":
    answers.set()
began = time.monotonic()
log.close()
print(f"closing={time.monotonic() - began}", flush=True)
if ending == "answer_late":
    print("closed", flush=True)
    sys.stdin.readline()
    answers.set()
    time.sleep(1.0)
    sys.exit(7)
# Counted here: once this process is gone, any run that starts on this machine may write out what it left.
with open(log.run_folder / "metrics.jsonl", "rb") as file:
    print(f"on_disk={file.read().count(10)}", flush=True)
sys.exit(7)
