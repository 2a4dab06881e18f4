"""The logger: takes values from a training loop, returns at once, and keeps them in a run folder."""

from typing import TYPE_CHECKING, Any

from toolkit.telemetry.core.sink import MemorySink, Sink
from toolkit.telemetry.integrations.reporting_names import add_names
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.runfolder.read_run import RunData, read_run

__all__ = ["MemorySink", "OptionsError", "RunData", "Sink", "TelemetryLogger", "TelemetryOptions", "read_run"]

add_names()

_OF_THE_FORK = ("extract_lora_metadata", "extract_model_info", "extract_training_info", "get_run_name")
"""What scripts that were written for ai-toolkit's telemetry fork import from here."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _OF_THE_FORK:
            from toolkit.telemetry.compat import fork

            return getattr(fork, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
