"""Checkpoints: the LoRA as other tools read it, and next to it what an exact resume needs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import save_file

from toolkit.telemetry.trainer.model import Lora

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bf16": torch.bfloat16}


class CheckpointError(Exception):
    """A checkpoint cannot be read, or does not fit the LoRA that the configuration asks for."""


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """How far a training has got, besides its weights."""

    step: int = 0
    epoch: int = 1
    run_id: str | None = None
    lr_scale: float = 1.0
    best_val_loss: float | None = None
    epoch_loss_sum: float = 0.0
    """Of the current epoch."""
    epoch_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint on disk, and what it resumes from."""

    path: Path
    state: TrainingState
    tensors: Mapping[str, Any]
    """The exact LoRA, and the state of the optimizer."""


class CheckpointFolder:
    """The checkpoints of one job: `<name>_<step>.safetensors` on the way, `<name>.safetensors` at the end."""

    def __init__(self, folder: Path, name: str, *, keep: int, dtype: str) -> None:
        self._folder = folder
        self._name = name
        self._keep = keep
        self._dtype = _DTYPES[dtype]

    def path_of(self, step: int, *, final: bool = False) -> Path:
        """Return where the checkpoint of `step` is written."""
        return self._folder / f"{self._name}{'' if final else f'_{step:09d}'}.safetensors"

    def save(
        self,
        path: Path,
        lora: Lora,
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
        about: Mapping[str, object],
    ) -> None:
        """Write a checkpoint, then remove the oldest ones on the way beyond those to keep.

        Each file appears under its name only when it is complete, and the LoRA comes last:
        if it is there, its state is too.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        weights = {name: parameter.detach().cpu() for name, parameter in lora.named_parameters()}
        resume = {"state": asdict(state), "lora": weights, "optimizer": optimizer.state_dict()}
        partial = path.with_name(f".{path.name}.partial")
        torch.save(resume, partial)
        os.replace(partial, _resume_path(path))
        header = {
            "format": "pt",
            "name": self._name,
            "training_info": json.dumps({"step": state.step, "epoch": state.epoch}),
            "run_id": state.run_id or "",
            "lora": json.dumps(about),
        }
        save_file(
            {name: tensor.to(self._dtype).contiguous() for name, tensor in weights.items()}, partial, header
        )
        os.replace(partial, path)
        on_the_way = [found for found in self._by_age() if found != self.path_of(0, final=True)]
        for old in on_the_way[: -self._keep]:
            old.unlink(missing_ok=True)
            _resume_path(old).unlink(missing_ok=True)

    def latest(self) -> FoundCheckpoint | None:
        """Return the checkpoint that was written last, or None; files that are not checkpoints are skipped."""
        for path in reversed(self._by_age()):
            try:
                return read_checkpoint(path)
            except CheckpointError as error:
                print(f"[run] skipping {error}")
        return None

    def _by_age(self) -> list[Path]:
        pattern = re.compile(re.escape(self._name) + r"(_\d{9,})?\.safetensors")
        found = [path for path in self._folder.glob("*.safetensors") if pattern.fullmatch(path.name)]
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def read_checkpoint(path: Path) -> FoundCheckpoint:
    """Read what a training resumes from. Raises CheckpointError if it is missing, incomplete or not ours."""
    try:
        tensors = torch.load(_resume_path(path), map_location="cpu", weights_only=True)
        return FoundCheckpoint(path=path, state=TrainingState(**tensors["state"]), tensors=tensors)
    except OSError as error:
        raise CheckpointError(f"{path}, which cannot be resumed: {error}") from error
    except (RuntimeError, EOFError, KeyError, TypeError, ValueError, UnpicklingError) as error:
        raise CheckpointError(f"{path}, whose {_resume_path(path).name} is not of this trainer") from error


def load(found: FoundCheckpoint, lora: Lora, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put a checkpoint into `lora` and `optimizer`; return how far it had got.

    Raises:
        CheckpointError: it holds a LoRA of another shape.
    """
    saved = {name: tuple(tensor.shape) for name, tensor in found.tensors["lora"].items()}
    asked = {name: tuple(parameter.shape) for name, parameter in lora.named_parameters()}
    if saved != asked:
        raise CheckpointError(
            f"{found.path} holds another LoRA than the configuration asks for: "
            f"{_summary(saved)}, not {_summary(asked)}"
        )
    with torch.no_grad():
        for name, parameter in lora.named_parameters():
            parameter.copy_(found.tensors["lora"][name])
    optimizer.load_state_dict(found.tensors["optimizer"])
    return found.state


def _summary(shapes: Mapping[str, tuple[int, ...]]) -> str:
    ranks = sorted({shape[0] for name, shape in shapes.items() if name.endswith("lora_A.weight")})
    return f"rank {', '.join(map(str, ranks))} on {len(shapes) // 2} layers"


def _resume_path(path: Path) -> Path:
    return path.with_suffix(".resume.pt")
