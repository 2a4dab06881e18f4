"""Checkpoints: the LoRA, and in the same file what an exact resume needs."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """How far a training has got, besides its weights."""

    rank: int
    step: int = 0
    run_id: str | None = None
    lr_scale: float = 1.0


def save_checkpoint(
    path: Path, lora: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, state: TrainingState
) -> None:
    """Write a checkpoint; the file appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    weights = {name: matrix.detach() for name, matrix in lora.items()}
    torch.save({"lora": weights, "optimizer": optimizer.state_dict(), "state": asdict(state)}, partial)
    os.replace(partial, path)


def read_checkpoint(path: Path) -> tuple[TrainingState, dict[str, Any]]:
    """Read what a training resumes from. Raises ValueError if it is missing, incomplete or not of this trainer."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        return TrainingState(**found["state"]), found
    except (OSError, EOFError, LookupError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} cannot be resumed, remove it: {error}") from error
