"""Hugging Face's `Trainer`, and TRL's trainers, which are based on it: one callback records them as runs."""

from toolkit.telemetry.integrations.transformers.callback import TelemetryCallback

__all__ = ["TelemetryCallback"]
