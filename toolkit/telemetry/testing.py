"""For the tests of scripts that log: a clock that a test sets, a sink in memory, and waiting for both.

sink = MemorySink()
with TelemetryLogger("run", log_dir=tmp_path, sinks=[sink], clock=ManualClock()) as log:
    train(log)
    settle(log)
assert steps_of(sink)[-1]["train_loss"] < 0.1
"""

from __future__ import annotations

from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.core.sink import MemorySink
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.runfolder.records import STEP, Record

__all__ = ["ManualClock", "MemorySink", "settle", "steps_of"]

_TIMEOUT_S = 60.0


def settle(log: TelemetryLogger, timeout_s: float = _TIMEOUT_S) -> None:
    """Wait until everything logged is in the files and sinks. Raises TimeoutError after `timeout_s`."""
    if log.is_live and not log.flush(timeout_s):
        raise TimeoutError(f"the records were not in the files and sinks after {timeout_s:g} s")


def steps_of(sink: MemorySink) -> list[Record]:
    """Return the step records that `sink` has."""
    return [record for record in sink.records if record["event"] == STEP]
