"""Writes the run as TensorBoard event files."""

from toolkit.mirrors.tensorboard.exporter import TensorBoardExporter

__all__ = ["TensorBoardExporter"]
