"""Logs from eight threads at once.

python log_from_eight_threads.py LOG_DIR
"""

from __future__ import annotations

import sys
import threading
import time

from tests.faults.child_program import SlowestCall, TelemetryLogger

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
slowest = [SlowestCall() for _ in range(8)]
together = threading.Barrier(8)


def work(number):
    together.wait()
    for step in range(400):
        slowest[number].of(log.log_step, 400 * number + step, train_loss=1.0, thread=number)
        slowest[number].of(log.log_event, "mine", thread=number, count=step)
        if step % 50 == 0:
            time.sleep(0.001)


threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
log.close()
print(f"slowest={max(each.seconds for each in slowest)}")
sys.exit(7)
