"""Sends the run to Weights & Biases."""

from toolkit.mirrors.wandb.exporter import WandbExporter

__all__ = ["WandbExporter"]
