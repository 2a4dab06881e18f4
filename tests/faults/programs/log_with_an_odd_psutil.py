"""Logs until a psutil that hangs or exits is named in the records, and closes.

python log_with_an_odd_psutil.py LOG_DIR hangs|exits
"""

from __future__ import annotations

import re
import sys
import threading
import time

import psutil

import toolkit.telemetry.logger.session.live_run
from tests.faults.child_program import SlowestCall, TelemetryLogger
from toolkit.telemetry.logger.machine.samplers import sampling

# A source that has not answered for three of its intervals hangs: half a second instead of four.
toolkit.telemetry.logger.session.live_run._SAMPLE_EVERY_S = sampling.SHORTEST_INTERVAL_S = 0.1

how = sys.argv[2]


def odd(*_, **__):
    if how == "exits":
        sys.exit("a library that thinks it is a program")
    threading.Event().wait()


psutil.virtual_memory = odd
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system_every=1.0, close_timeout=20.0)
slowest = SlowestCall()
deadline = time.monotonic() + 100
wanted = {"hangs": rb'"not_answering":[[][^]]*"host"', "exits": rb"it ended its own thread"}[how]
records = log.run_folder / "metrics.jsonl"
step = 0


def is_named():
    return records.exists() and re.search(wanted, records.read_bytes())


while time.monotonic() < deadline and not is_named():
    slowest.of(log.log_step, step, train_loss=1.0)
    step += 1
    time.sleep(0.02)
log.close()
print(f"slowest={slowest.seconds}")
print(f"steps={step}")
sys.exit(7)
