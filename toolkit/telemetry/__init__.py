"""Telemetry of a training: `TelemetryLogger` writes a run folder, `read_run` reads one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.telemetry.core.sink import MemorySink, Sink
    from toolkit.telemetry.logger.logger import TelemetryLogger
    from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
    from toolkit.telemetry.runfolder.read_run import RunData, read_run

__all__ = ["MemorySink", "OptionsError", "RunData", "Sink", "TelemetryLogger", "TelemetryOptions", "read_run"]

_PLACES = {
    "MemorySink": "core.sink",
    "OptionsError": "logger.options",
    "RunData": "runfolder.read_run",
    "Sink": "core.sink",
    "TelemetryLogger": "logger.logger",
    "TelemetryOptions": "logger.options",
    "read_run": "runfolder.read_run",
    # What scripts that were written for ai-toolkit's telemetry fork import from here.
    "extract_lora_metadata": "compat.fork",
    "extract_model_info": "compat.fork",
    "extract_training_info": "compat.fork",
    "get_run_name": "compat.fork",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: a room below this package needs no logger."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        # The frameworks learn the name `telemetry` with the first public name of ours.
        import_module(f"{__name__}.integrations")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
        return value
