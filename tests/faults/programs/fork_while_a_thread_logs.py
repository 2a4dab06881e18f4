"""Forks at every step while a thread logs; each child uses the logger.

python fork_while_a_thread_logs.py LOG_DIR FORKS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger, use_in_a_child

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
go_on = True


def log_events():
    while go_on:
        for _ in range(20):
            log.log_event("from_the_thread")
        time.sleep(0.001)


thread = threading.Thread(target=log_events)
thread.start()
slowest = SlowestCall()
ended_badly = []
for step in range(int(sys.argv[2])):
    slowest.of(log.log_step, step, train_loss=1.0)
    if step % 20 == 0:
        time.sleep(0.005)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs ends by this signal, and is counted below
        use_in_a_child(log)
        if step % 2:
            os._exit(0)
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        ended_badly.append(status)
go_on = False
thread.join()
log.close()
print(f"slowest={slowest.seconds}")
print(f"ended_badly={len(ended_badly)}")
sys.exit(7)
