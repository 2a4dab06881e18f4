"""Interrupts each part of the end of a run, and ends it again.

python interrupt_the_end.py LOG_DIR
"""

from __future__ import annotations

import sys
import threading

from tests.faults.child_program import TelemetryLogger
from tests.waiting import wait_until
from toolkit.telemetry.logger.writing.pipeline import RecordPipeline

for part in ("wait_for_devices", "conclude_findings", "conclude_messages", "close"):
    log = TelemetryLogger(f"run-{part}", log_dir=sys.argv[1], log_every=5, system=False)
    for step in range(9):
        log.log_step(step, train_loss=1.0)
    whole, calls = getattr(RecordPipeline, part), []

    def once(*args, whole=whole, calls=calls, **named):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return whole(*args, **named)

    setattr(RecordPipeline, part, once)
    try:
        log.close()
    except KeyboardInterrupt:
        print("interrupted", part)
    setattr(RecordPipeline, part, whole)
    log.close()  # it is ended, and nothing is written twice
wait_until(lambda: not any(thread.name.startswith("telemetry") for thread in threading.enumerate()))
