"""Lightning: a callback and a logger that write trainings as runs with curves, spans, checkpoints and requests."""

from toolkit.telemetry.integrations.lightning.callback import TelemetryCallback
from toolkit.telemetry.integrations.lightning.logger import TelemetryLightningLogger

__all__ = ["TelemetryCallback", "TelemetryLightningLogger"]
