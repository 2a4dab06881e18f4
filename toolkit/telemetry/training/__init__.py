"""The parts of a training job by OneLogger's names, what is known of each, and how fast the job goes."""

from toolkit.telemetry.training.config import ConfigError, TrainingConfig
from toolkit.telemetry.training.telemetry import TrainingTelemetry

__all__ = ["ConfigError", "TrainingConfig", "TrainingTelemetry"]
