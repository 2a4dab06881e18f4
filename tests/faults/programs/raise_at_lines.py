"""Raises out of a signal handler at lines of ours, one after the other, while a run begins, logs and ends.

python raise_at_lines.py LOG_DIR PART_OF_THE_PACKAGE MOST_LINES
"""

from __future__ import annotations

import os
import signal
import sys

import toolkit.telemetry
from tests.faults.child_program import TelemetryLogger

log_dir, part, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
ours = os.path.join(os.path.dirname(toolkit.telemetry.__file__), part)
lines: dict[tuple[str, int], None] = {}
wanted: tuple[str, int] | None = None
raised = 0


def handle(signal_number, frame):
    global raised
    raised += 1
    raise TimeoutError("the script's own time limit")


def look(frame, event, argument):
    here = frame.f_code.co_filename, frame.f_lineno
    if event == "call":
        return look if here[0].startswith(ours) else None
    if event == "line" and wanted is None:
        lines[here] = None
    elif event == "line" and here == wanted:
        sys.settrace(None)
        signal.raise_signal(signal.SIGUSR1)
    return look


def train(folder):
    log = None
    sys.settrace(look)
    try:
        log = TelemetryLogger("run", log_dir=folder, system=False, diagnostics=False, csv=False, resume=True)
        log.log_step(0, train_loss=1.0)
        log.close()
    finally:
        sys.settrace(None)
        if log is not None:
            log.close()


signal.signal(signal.SIGUSR1, handle)
train(f"{log_dir}/first")
lines.clear()
train(f"{log_dir}/second")
arrived = 0
for number, line in enumerate(list(lines)[:: max(1, len(lines) // most)]):
    wanted = line
    try:
        train(f"{log_dir}/{number}")
    except TimeoutError:
        arrived += 1
    else:
        print("swallowed at", *line)
print(f"raised={raised}")
print(f"arrived={arrived}")
