"""What the programs of these tests import: the logger with time for its end, and what measures its calls."""

from __future__ import annotations

import mmap
import os
import struct
import time

from tests.waiting import TIME_TO_CLOSE_S
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.writing import rank_folder
from toolkit.telemetry.runfolder.process import is_in_container

__all__ = ["Acknowledged", "SlowestCall", "TelemetryLogger", "log_for_ever", "use_in_a_child"]

TelemetryOptions.__init__.__kwdefaults__["close_timeout"] = TIME_TO_CLOSE_S

# Nor is it a rank 0 that never comes.
rank_folder._WAIT_FOR_RANK_ZERO_S = 120.0

# Also where all these tests run in a container: disks fail here that a journal in the run folder would lie on.
if is_in_container():
    TelemetryOptions.__init__.__kwdefaults__["journal"] = "shm"


class Acknowledged:
    """The number of the last step whose call returned, in memory that a kill leaves behind."""

    def __init__(self, path):
        self._map = mmap.mmap(os.open(path, os.O_RDWR), 8)

    def set(self, step):
        self._map[:] = struct.pack("<q", step)


class SlowestCall:
    """Times calls; `seconds` is the longest."""

    def __init__(self):
        self.longest = [0.0] * 4

    def of(self, function, *args, **fields):
        began = time.perf_counter()
        function(*args, **fields)
        took = time.perf_counter() - began
        if took > self.longest[0]:
            self.longest = sorted([*self.longest[1:], took])

    @property
    def seconds(self):
        # Three may have met a pause of the machine. What waits for a fault is held up each time.
        assert self.longest[0] < 1.0, f"calls that took long: {self.longest}"
        return self.longest[-1]


def log_for_ever(log, *, until=lambda: False, pause_s=0.0005, **fields):
    """Log a step after the other, and acknowledge each once its call has returned."""
    acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
    step = 0
    while not until():
        log.log_step(step, train_loss=1.0, **fields)
        acknowledged.set(step)
        step += 1
        time.sleep(pause_s)


def use_in_a_child(log):
    """Call a logger in a forked child, in which it does nothing."""
    log.log_step(1_000_000, train_loss=2.0)
    log.log_event("from_the_child", text="x" * 1000)
    log.log_eval(1, val_loss=1.0)
    log.flush()
    assert not log.should_stop
    assert not log.take_requests()
    assert not log.is_live
    log.close()
