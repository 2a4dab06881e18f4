"""Logs N more steps for each line "steps N" of stdin, an event for "event NAME", and closes at "end".

python log_on_request.py LOG_DIR QUEUE_MAX_MB CLOSE_TIMEOUT
"""

from __future__ import annotations

import sys
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger

options = {"queue_max_mb": float(sys.argv[2]), "close_timeout": float(sys.argv[3])}
options |= {"journal": sys.argv[4]} if len(sys.argv) > 4 else {}
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, **options)
log.log_start()
slowest = SlowestCall()
step = 0
for line in sys.stdin:
    word, _, number = line.partition(" ")
    if word == "end":
        break
    if word == "event":
        slowest.of(log.log_event, number.strip(), text="z")
    for _ in range(int(number) if word == "steps" else 0):
        slowest.of(log.log_step, step, train_loss=1.0, x=step, note="y" * 1000)
        step += 1
        if step % 5 == 0:
            time.sleep(0.001)
    print("done", line.strip(), flush=True)
log.close()
print(f"slowest={slowest.seconds}")
sys.exit(7)
