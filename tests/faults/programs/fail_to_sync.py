"""Logs to a disk whose syncs fail: once, at the very end, always until then, or too late for what is still in memory.

A failing sync also does what the kernel then does: pages that were not on the disk yet become zeros.

python fail_to_sync.py LOG_DIR SYNC_INTERVAL once|at_the_end|always|too_late
"""

from __future__ import annotations

import os
import sys
import time

import toolkit.telemetry.logger.writing.mirror
from tests.faults.child_program import SlowestCall, TelemetryLogger

log_dir, sync_interval, case = sys.argv[1:]
if case != "too_late":
    # The table follows the records, which a machine that is busy elsewhere may take long to write again.
    toolkit.telemetry.logger.writing.mirror._PATIENCE_S = 60.0

good_upto = 0
failures = 0
is_ending = False
calls = iter({"once": [False, True], "too_late": [True]}.get(case, []))
fdatasync = os.fdatasync


def fails():
    if case == "at_the_end":
        return is_ending and not failures
    if case == "always":
        return not is_ending
    return next(calls, False)


def failing_fdatasync(descriptor):
    global good_upto, failures
    if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
        fdatasync(descriptor)
        return
    size = os.fstat(descriptor).st_size
    if not fails():
        good_upto = size
        return
    failures += 1
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    with open(path, "r+b") as file:
        file.seek(good_upto)
        file.write(bytes(size - good_upto))
    raise OSError(5, "Input/output error")


os.fdatasync = failing_fdatasync
log = TelemetryLogger("run", log_dir=log_dir, log_every=1, sync_interval=float(sync_interval), system=False)
log.log_start()
slowest = SlowestCall()
fields = {"note": "y" * 5000} if case == "too_late" else {}
for step in range({"once": 4000, "at_the_end": 1000, "always": 5000, "too_late": 1200}[case]):
    slowest.of(log.log_step, step, train_loss=1.0, x=step, **fields)
    if step % 10 == 0:
        time.sleep(0.001)
if case != "once":
    log.flush()
if case == "too_late":
    log.sync()
until = time.monotonic() + 60
while case == "always" and failures <= 3 and time.monotonic() < until:
    time.sleep(0.05)
is_ending = True
if case in ("always", "too_late"):
    time.sleep(0.5)
log.close()
print(f"slowest={slowest.seconds}")
print(f"failures={failures}")
sys.exit(7)
