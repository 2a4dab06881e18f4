"""The logger: takes values from a training loop, returns at once, and keeps them in a run folder."""

from toolkit.telemetry.logger import TelemetryLogger
from toolkit.telemetry.options import OptionsError, TelemetryOptions
from toolkit.telemetry.sink import MemorySink, Sink

__all__ = ["MemorySink", "OptionsError", "Sink", "TelemetryLogger", "TelemetryOptions"]
