"""Raises out of a signal handler, as a time limit does, in a loop that does nothing but log.

python raise_in_a_signal_handler.py LOG_DIR
"""

from __future__ import annotations

import signal
import sys

from tests.faults.child_program import TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False)
log.log_start()
raised = arrived = returned = 0
is_open = False


def handle(signal_number, frame):
    global raised
    if is_open:
        raised += 1
        raise TimeoutError("too slow")


signal.signal(signal.SIGALRM, handle)
step = 0
while raised < 150:
    step += 1
    try:
        is_open = True
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.000003 * (step % 50))
        for turn in range(20):
            log.log_step(20 * step + turn, train_loss=1.0, text="a")
            with log.span("forward"), log.span("mine"):
                pass
            log.log_event("mine", value=turn)
            returned += 1
        is_open = False
    except TimeoutError:
        is_open = False
        arrived += 1
signal.setitimer(signal.ITIMER_REAL, 0)
log.log_event("after")
assert log.flush(60), "a lock was left held"
log.close()
print(f"raised={raised}")
print(f"arrived={arrived}")
print(f"returned={returned}")
print(f"swallowed={log.guard.total}")
sys.exit(7)
