"""Logs until a driver that hangs or fails is named in the records, and closes.

python log_with_a_sick_driver.py LOG_DIR SICK_AT_FIRST SICK_LATER
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time

import toolkit.telemetry.logger.session.live_run
from tests.faults.child_program import SlowestCall, TelemetryLogger
from toolkit.telemetry.logger.machine.samplers import sampling

ctypes.CDLL(os.environ["DRIVER"])
# A source that has not answered for three of its intervals hangs: half a second instead of four.
toolkit.telemetry.logger.session.live_run._SAMPLE_EVERY_S = sampling.SHORTEST_INTERVAL_S = 0.1
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system_every=1.0, close_timeout=20.0)
slowest = SlowestCall()
deadline = time.monotonic() + 120
step = 0


def log_until(is_done):
    global step
    while not is_done(log._run._sampling) and time.monotonic() < deadline:
        slowest.of(log.log_step, step, train_loss=1.0)
        step += 1
        time.sleep(0.05)


if sys.argv[3]:
    log_until(lambda sampling: "gpu/0/util" in sampling.latest())
    with open(os.environ["SICK_DRIVER"], "w") as file:
        file.write(sys.argv[3])
if "hang" in sys.argv[2] + sys.argv[3]:
    hangs_at_the_end = "nvmlShutdown" in sys.argv[3]
    # Until a system record says so.
    records = log.run_folder / "metrics.jsonl"
    named = re.compile(rb'"not_answering":[[][^]]*"nvml"')
    log_until(lambda _: hangs_at_the_end or (records.exists() and named.search(records.read_bytes())))
else:
    log_until(lambda sampling: any("GPU 0" in kind for kind in log.guard.counts))
began = time.monotonic()
log.close()
print(f"closing={time.monotonic() - began}")
print(f"slowest={slowest.seconds}")
print(f"steps={step}")
sys.exit(7)
