"""The phases of a training job by OneLogger's names, their attributes, and the job's throughput."""

from toolkit.telemetry.logger.training.config import ConfigError, TrainingConfig
from toolkit.telemetry.logger.training.telemetry import TrainingTelemetry

__all__ = ["ConfigError", "TrainingConfig", "TrainingTelemetry"]
