"""Trains with spans of known length, and is killed at the end if asked.

python train_for_the_ledger.py LOG_DIR FIRST LAST killed|finished
"""

from __future__ import annotations

import os
import signal
import sys
import time

from toolkit.telemetry import TelemetryLogger

log_dir, first, last, is_killed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "killed"
log = TelemetryLogger("run", log_dir=log_dir, log_every=5, resume=True, system=False)
with log.span("model_init"):
    time.sleep(0.05)
log.log_start(training={"resumed_from_step": first})
with log.span("training_loop"):
    for step in range(first + 1, last + 1):
        with log.span("data_loading"):
            time.sleep(0.001)
        with log.span("training_iteration"):
            time.sleep(0.003)
        log.log_step(step, train_loss=1.0 / step)
        if step % 20 == 0:
            with log.span("validation_loop"):
                time.sleep(0.04)
            with log.span("checkpoint_save_sync"):
                time.sleep(0.02)
            log.log_checkpoint(step, "model.safetensors", seconds=0.02)
    if is_killed:
        log.flush()
        os.kill(os.getpid(), signal.SIGKILL)
log.close()
