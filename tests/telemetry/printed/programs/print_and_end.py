"""Prints in every way that a training does, and ends as it is asked to."""

import os
import signal
import sys
import time
from pathlib import Path

from toolkit.telemetry import TelemetryLogger

how, log_dir = sys.argv[1:]
log = TelemetryLogger("run", log_dir=log_dir, system=False, csv=False, control=False)
output = Path(log_dir) / "run" / "output.log"
print("on stdout")
print("on stderr", file=sys.stderr)
print("token hf_" + "a1B2" * 9)
for percent in range(0, 101, 10):
    sys.stderr.write(f"\r{percent} %")
sys.stderr.write("\n")
if os.fork() == 0:
    print("from a fork")
    os._exit(0)
os.wait()
if how == "killed":
    while not output.exists() or "100 %" not in output.read_text():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
if how == "ended":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
if how == "failed":
    raise ValueError("the last words")
with log:
    raise ValueError("the last words")
