"""Ends each run from three threads, a signal handler and the loop at once.

python end_from_everywhere.py LOG_DIR RUNS
"""

from __future__ import annotations

import signal
import sys
import threading

from tests.faults.child_program import TelemetryLogger

runs = int(sys.argv[2])
waits = []
for number in range(runs):
    log = TelemetryLogger(f"run{number}", log_dir=sys.argv[1], log_every=1, system=False, csv=False)
    for step in range(20):
        log.log_step(step, train_loss=1.0)
    together = threading.Barrier(4)

    def end(log=log, together=together):
        together.wait()
        log.close("stopped")
        # Whoever comes back finds the run ended, by whomever.
        with open(log.run_folder / "run.json") as file:
            waits.append('"status": "running"' in file.read())

    threads = [threading.Thread(target=end, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    # And from a signal handler, in the middle of whatever the main thread is doing then.
    signal.signal(signal.SIGALRM, lambda *_, log=log: log.close())
    together.wait()
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.0005 * (number % 8))
    log.close()
    for thread in threads:
        thread.join()
    log.close()
print(f"came_back_early={sum(waits)}")
print(f"returned={len(waits)}")
sys.exit(7)
