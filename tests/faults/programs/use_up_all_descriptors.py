"""Logs, and starts another run, while no file descriptor is left.

python use_up_all_descriptors.py LOG_DIR
"""

from __future__ import annotations

import os
import resource
import sys
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
slowest = SlowestCall()
options = {"log_dir": sys.argv[1], "log_every": 1, "system": False, "sync_interval": 0.2}
log = TelemetryLogger("before", **options)
for step in range(200):
    slowest.of(log.log_step, step, train_loss=1.0)
taken = []


def take_all():
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


take_all()
later = TelemetryLogger("during", **options)
for step in range(1200):
    slowest.of(log.log_step, 200 + step, train_loss=1.0, made_later=1)
    slowest.of(later.log_step, step, train_loss=1.0)
    # A thread of ours that looked at the machine may have closed some.
    take_all()
    time.sleep(0.001)
for descriptor in taken:
    os.close(descriptor)
log.close()
later.close()
print(f"slowest={slowest.seconds}")
print(f"taken={len(taken)}")
sys.exit(7)
