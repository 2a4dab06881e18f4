"""Logs a step every millisecond until the line "end"; "new" adds a metric that the table has no column for.

python log_until_end.py LOG_DIR [no-diagnostics]
"""

from __future__ import annotations

import os
import sys
import threading
import time

from tests.faults.child_program import Acknowledged, SlowestCall, TelemetryLogger

options = {"diagnostics": False} if "no-diagnostics" in sys.argv else {}
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, **options)
log.log_start()
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
slowest = SlowestCall()
lines = []
threading.Thread(target=lambda: lines.extend(iter(sys.stdin.readline, "")), daemon=True).start()
step = 0
while "end\n" not in lines:
    extra = {"made_later": 1.0} if "new\n" in lines else {}
    slowest.of(log.log_step, step, train_loss=1.0, x=step, **extra)
    acknowledged.set(step)
    step += 1
    time.sleep(0.001)
log.close()
print(f"slowest={slowest.seconds}")
sys.exit(7)
