"""The base model's weights as a file: written by the pretraining, read by every run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from toolkit.trainer.model import ARCHITECTURE, TinyDiT

BASE_NAME = "shapes-dit-32"
"""The name of the shipped base model in a configuration."""

BASE_WEIGHTS = Path(__file__).parent / "weights" / f"{BASE_NAME}.safetensors"


class BaseWeightsError(Exception):
    """A file does not have the weights of this model."""


def load_base(name_or_path: str) -> TinyDiT:
    """Return the model with its base weights, frozen. Raises BaseWeightsError if the file is missing or another."""
    path = BASE_WEIGHTS if name_or_path == BASE_NAME else Path(name_or_path)
    try:
        with safe_open(path, "pt") as file:
            architecture = (file.metadata() or {}).get("architecture")
        tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise BaseWeightsError(f"cannot read base weights {path}: {error}") from error
    model = TinyDiT()
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if architecture != ARCHITECTURE or {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise BaseWeightsError(f"{path} does not have the weights of {ARCHITECTURE}")
    model.load_state_dict(tensors)
    return model.requires_grad_(False).eval()


def save_base(model: TinyDiT, path: Path, *, steps: int, seed: int) -> None:
    """Write the weights of `model` in half precision, with steps and seed as metadata."""
    tensors = {
        name: tensor.to("cpu", torch.float16).contiguous() for name, tensor in model.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {"architecture": ARCHITECTURE, "steps": str(steps), "seed": str(seed), "format": "pt"}
    save_file(tensors, path, metadata=made)
