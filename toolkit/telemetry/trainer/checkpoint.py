"""Checkpoints: the LoRA, and in the same file what an exact resume needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Parameter

_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")


class CheckpointError(Exception):
    """A checkpoint cannot be read."""


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """How far a training has got, besides its weights."""

    step: int = 0
    run_id: str | None = None
    lr_scale: float = 1.0
    best_val_loss: float | None = None
    epoch_loss_sum: float = 0.0
    """Of the current epoch."""
    epoch_steps: int = 0


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    path: Path
    state: TrainingState
    tensors: dict[str, Tensor]
    """The LoRA, and the state of the optimizer."""

    def load(self, lora: Mapping[str, Parameter], optimizer: torch.optim.Optimizer) -> None:
        """Put the weights into `lora`, and their state into `optimizer`."""
        with torch.no_grad():
            for name, matrix in lora.items():
                matrix.copy_(self.tensors[name])
                kept = {field: self.tensors[f"{field}/{name}"] for field in _OF_ADAM}
                optimizer.state[matrix] = {field: tensor.to(matrix.device) for field, tensor in kept.items()}

    @property
    def rank(self) -> int:
        """The rank of its LoRA."""
        return len(next(tensor for name, tensor in self.tensors.items() if name.endswith("lora_A.weight")))


class CheckpointFolder:
    """The checkpoints of one job: `<name>_<step>.safetensors` on the way, `<name>.safetensors` at the end."""

    def __init__(self, folder: Path, name: str, *, keep: int) -> None:
        self._folder = folder
        self._name = name
        self._keep = keep

    def path_of(self, step: int, *, final: bool = False) -> Path:
        """Return where the checkpoint of `step` is written."""
        return self._folder / f"{self._name}{'' if final else f'_{step:09d}'}.safetensors"

    def save(
        self,
        path: Path,
        lora: Mapping[str, Parameter],
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
        about: Mapping[str, object],
    ) -> None:
        """Write a checkpoint, then remove the oldest ones on the way beyond those to keep.

        The file appears under its name only when it is complete.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: matrix.detach().cpu() for name, matrix in lora.items()}
        for name, matrix in lora.items():
            tensors.update((f"{field}/{name}", optimizer.state[matrix][field].cpu()) for field in _OF_ADAM)
        partial = path.with_name(f".{path.name}.partial")
        save_file(tensors, partial, {"state": json.dumps(asdict(state)), "lora": json.dumps(about)})
        os.replace(partial, path)
        on_the_way = [found for found in self._by_age() if found != self.path_of(0, final=True)]
        for old in on_the_way[: -self._keep]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint that was written last, or None; one that cannot be read is skipped."""
        for path in reversed(self._by_age()):
            try:
                return read_checkpoint(path)
            except CheckpointError as error:
                print(f"[run] skipping {error}")
        return None

    def _by_age(self) -> list[Path]:
        found = self._folder.glob("*.safetensors")
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read what a training resumes from. Raises CheckpointError if it is missing, incomplete or not of this trainer."""
    try:
        with safe_open(path, "pt") as file:
            state = TrainingState(**json.loads(file.metadata()["state"]))
            return Checkpoint(path, state, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}, which cannot be resumed: {error}") from error
