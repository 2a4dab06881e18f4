"""Checkpoints: the LoRA, and in the same file what an exact resume needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.nn import Parameter

_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """How far a training has got, besides its weights."""

    rank: int
    step: int = 0
    run_id: str | None = None
    lr_scale: float = 1.0


def save_checkpoint(
    path: Path, lora: Mapping[str, Parameter], optimizer: torch.optim.Optimizer, state: TrainingState
) -> None:
    """Write a checkpoint; the file appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: matrix.detach().cpu() for name, matrix in lora.items()}
    for name, matrix in lora.items():
        tensors |= {f"{field}/{name}": optimizer.state[matrix][field].cpu() for field in _OF_ADAM}
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, partial, {"state": json.dumps(asdict(state))})
    os.replace(partial, path)


def load_checkpoint(path: Path, lora: Mapping[str, Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Put the weights of a checkpoint into `lora`, and their state into `optimizer`."""
    tensors = load_file(path)
    with torch.no_grad():
        for name, matrix in lora.items():
            matrix.copy_(tensors[name])
            optimizer.state[matrix] = {
                field: tensors[f"{field}/{name}"].to(matrix.device) for field in _OF_ADAM
            }


def read_state(path: Path) -> TrainingState:
    """Read what a training resumes from. Raises ValueError if it is missing, incomplete or not of this trainer."""
    try:
        with safe_open(path, "pt") as file:
            return TrainingState(**json.loads(file.metadata()["state"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be resumed, remove it: {error}") from error


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder."""
    return max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns, default=None)
