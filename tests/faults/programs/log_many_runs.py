"""Logs a step of each run in turn until the line "end"; "faults" adds a metric, which rewrites the table.

python log_many_runs.py LOG_DIR SWITCH NAME...

SWITCH is the file with the faults to inject, or "-".
"""

from __future__ import annotations

import os
import sys
import threading
import time

from tests.faults.child_program import Acknowledged, SlowestCall, TelemetryLogger
from tests.faults.injected_faults import inject_faults

if sys.argv[2] != "-":
    inject_faults(*sys.argv[1:3])
names = sys.argv[3:]
logs = {
    name: TelemetryLogger(
        name, log_dir=sys.argv[1], log_every=1, system=False, sync_interval=0.3, close_timeout=30
    )
    for name in names
}
slowest = {name: SlowestCall() for name in names}
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
lines = []
threading.Thread(target=lambda: lines.extend(iter(sys.stdin.readline, "")), daemon=True).start()
step = 0
while "end\n" not in lines:
    # A new metric rewrites the table, which opens and renames files.
    later = {"made_later": 1.0} if "faults\n" in lines else {}
    for name, log in logs.items():
        slowest[name].of(log.log_step, step, train_loss=1.0, x=step, **later)
    acknowledged.set(step)
    step += 1
    time.sleep(0.002)
for log in logs.values():
    log.close()
for name in names:
    print(f"{name}={slowest[name].seconds}")
sys.exit(7)
