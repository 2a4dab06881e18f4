"""Hugging Face's `Trainer`, and the trainers of TRL that are made of it, as a run of ours: one callback."""

from toolkit.telemetry.integrations.transformers.callback import TelemetryCallback

__all__ = ["TelemetryCallback"]
