"""Logs where no thread can be started.

python start_no_threads.py LOG_DIR
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from pathlib import Path

from tests.faults.child_program import SlowestCall, TelemetryLogger

# A thread's stack does not fit into what is left of the address space.
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), resource.RLIM_INFINITY))
threading.stack_size(1 << 30)
refused = 0
try:
    threading.Thread(target=print).start()
except RuntimeError:
    refused = 1
slowest = SlowestCall()
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, close_timeout=5)
for step in range(2000):
    slowest.of(log.log_step, step, train_loss=1.0)
slowest.of(log.log_checkpoint, 2000, "model.safetensors")
began = time.monotonic()
assert not log.flush()
log.close()
print(f"closing={time.monotonic() - began}")
print(f"slowest={slowest.seconds}")
print(f"refused={refused}")
sys.exit(7)
