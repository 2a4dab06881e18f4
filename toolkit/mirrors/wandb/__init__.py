"""The run in Weights & Biases."""

from toolkit.mirrors.wandb.exporter import WandbExporter

__all__ = ["WandbExporter"]
