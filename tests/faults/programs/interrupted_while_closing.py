"""Ends a run with a mirror that takes long to close: by an exception, by `close`, or by an exit out of its block.

python interrupted_while_closing.py LOG_DIR raise|close|exit
"""

from __future__ import annotations

import signal
import sys
import time

from tests.faults.child_program import TelemetryLogger


class Slow:
    name = "slow"

    def write(self, batch):
        pass

    def close(self):
        print("the slow mirror is being closed", flush=True)
        time.sleep(200)


class Limit(Exception):
    pass


def raise_limit(number, frame):
    raise Limit


signal.signal(signal.SIGUSR1, raise_limit)
log = TelemetryLogger(
    "run", log_dir=sys.argv[1], log_every=1, system=False, sinks=[Slow()], close_timeout=100
)
for step in range(500):
    log.log_step(step, train_loss=1.0)
if sys.argv[2] == "raise":
    raise KeyboardInterrupt
if sys.argv[2] == "close":
    log.close()
else:
    with log:
        sys.exit(3)
