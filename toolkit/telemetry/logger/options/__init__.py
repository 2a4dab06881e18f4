"""The `telemetry:` block, checked once."""

from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.logger.options.blocks import SpanOptions
from toolkit.telemetry.logger.options.telemetry_options import TelemetryOptions
from toolkit.telemetry.logger.options.training_yaml import (
    find_process,
    options_from_config,
    run_name_from_config,
)

__all__ = [
    "OptionsError",
    "SpanOptions",
    "TelemetryOptions",
    "find_process",
    "options_from_config",
    "run_name_from_config",
]
