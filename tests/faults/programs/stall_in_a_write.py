"""Logs to a disk that takes the first bytes of a batch and then stalls: a kill now leaves half a line in the file.

python stall_in_a_write.py LOG_DIR WRITTEN STEPS
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from tests.faults.child_program import TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, csv=False)
log.log_event("first")
log.flush(60)
write = os.write


def write_a_part(descriptor, data):
    if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
        return write(descriptor, data)
    lines = bytes(data).split(b"\n")
    keep = {"half a line": len(lines[0]) // 2, "all but the newline": len(lines[0])}[sys.argv[2]]
    write(descriptor, bytes(data)[:keep])
    print("stalled", flush=True)
    return threading.Event().wait()


os.write = write_a_part
for step in range(int(sys.argv[3])):
    log.log_step(step, train_loss=1.0)
print("logged", flush=True)
signal.pause()
