"""The run in Weights & Biases."""

from toolkit.telemetry.exporters.wandb.exporter import WandbExporter

__all__ = ["WandbExporter"]
