"""The run as TensorBoard event files."""

from toolkit.telemetry.exporters.tensorboard.exporter import TensorBoardExporter

__all__ = ["TensorBoardExporter"]
