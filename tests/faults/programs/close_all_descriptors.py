"""Closes the descriptors of the logger by their numbers, opens files of its own under these, and logs on.

python close_all_descriptors.py LOG_DIR JOURNAL
"""

from __future__ import annotations

import os
import re
import sys
import time

from tests.faults.child_program import TelemetryLogger


def opened():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if re.search("metrics|[.]journal", path):
            found.add((int(number), path))
    return found


log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, journal=sys.argv[2])
for step in range(300):
    log.log_step(step, train_loss=1.0)
log.flush(60)
ours = opened()
for _ in range(5):
    # What a thread of ours has open briefly, to read the records, is closed by that thread.
    time.sleep(0.07)
    ours &= opened()
ours = sorted(number for number, _ in ours)
# No turn of a writing thread comes in between: the interpreter does not change threads inside of this.
sys.setswitchinterval(10)
for number in ours:
    os.close(number)
theirs = [os.open(f"{sys.argv[1]}/theirs-{number}", os.O_RDWR | os.O_CREAT, 0o600) for number in ours]
sys.setswitchinterval(0.005)
for step in range(300, 600):
    log.log_step(step, train_loss=1.0, made_later=1)
    time.sleep(0.002)
log.close()
for number in theirs:
    assert os.write(number, b"mine") == 4, "it was not closed in turn"
    assert os.fstat(number).st_size == 4, "nothing of ours was written to it"
print(f"closed={len(ours)}")
sys.exit(7)
