"""Forks a process that outlives this one, and logs until it is killed.

python leave_a_child_behind.py LOG_DIR
"""

from __future__ import annotations

import os
import sys
import time

from tests.faults.child_program import TelemetryLogger, log_for_ever

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
print(f"child={child}", flush=True)
log_for_ever(log)
