"""Checkpoints: the LoRA as other tools read it, and next to it what an exact resume needs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

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
    """A checkpoint on disk, known by its header."""

    path: Path
    state: TrainingState
    saved_at: float


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
        weights = {name: parameter.detach() for name, parameter in lora.named_parameters()}
        moments = {
            f"{name}/{key}": value
            for name, parameter in lora.named_parameters()
            for key, value in optimizer.state[parameter].items()
        }
        _write(_state_path(path), weights | moments, {"format": "pt"})
        header = {
            "format": "pt",
            "name": self._name,
            "training_info": json.dumps({"step": state.step, "epoch": state.epoch}),
            "run_id": state.run_id or "",
            "state": json.dumps(asdict(state)),
            "saved_at": repr(time.time()),
            "lora": json.dumps(about),
        }
        _write(path, {name: tensor.to(self._dtype) for name, tensor in weights.items()}, header)
        on_the_way = [found.path for found in self._by_age() if found.path != self.path_of(0, final=True)]
        for old in on_the_way[: -self._keep]:
            old.unlink(missing_ok=True)
            _state_path(old).unlink(missing_ok=True)

    def latest(self) -> FoundCheckpoint | None:
        """Return the checkpoint that was written last, or None; files that are not checkpoints are skipped."""
        return next(reversed(self._by_age()), None)

    def _by_age(self) -> list[FoundCheckpoint]:
        pattern = re.compile(re.escape(self._name) + r"(_\d{9,})?\.safetensors")
        found = []
        for path in self._folder.glob("*.safetensors"):
            if pattern.fullmatch(path.name):
                try:
                    found.append(read_header(path))
                except CheckpointError as error:
                    print(f"[run] skipping {error}")
        return sorted(found, key=lambda one: (one.saved_at, one.state.step))


def read_header(path: Path) -> FoundCheckpoint:
    """Read what a checkpoint says about itself. Raises CheckpointError if it is missing, incomplete or not ours."""
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        state = TrainingState(**json.loads(header["state"]))
        return FoundCheckpoint(path=path, state=state, saved_at=float(header["saved_at"]))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}, which cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}, which has no state of this trainer in its header") from error


def load(found: FoundCheckpoint, lora: Lora, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put a checkpoint's weights into `lora` and its moments into `optimizer`; return how far it had got.

    Without its `.optimizer.safetensors` the weights are taken as saved, and the optimizer starts afresh.

    Raises:
        CheckpointError: the file cannot be read, or holds a LoRA of another shape.
    """
    exact = _state_path(found.path)
    if not exact.exists():
        print(f"[run] {exact.name} is missing: the optimizer starts afresh")
        exact = found.path
    try:
        tensors = load_file(exact)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{exact} cannot be read: {error}") from error
    saved = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.endswith(".weight")}
    asked = {name: tuple(parameter.shape) for name, parameter in lora.named_parameters()}
    if saved != asked:
        raise CheckpointError(
            f"{found.path} holds another LoRA than the configuration asks for: "
            f"{_summary(saved)}, not {_summary(asked)}"
        )
    moments: dict[int, dict[str, Tensor]] = {}
    with torch.no_grad():
        for place, (name, parameter) in enumerate(lora.named_parameters()):
            parameter.copy_(tensors[name])
            own = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if f"{name}/" in key}
            if own:
                moments[place] = own
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return found.state


def _summary(shapes: Mapping[str, tuple[int, ...]]) -> str:
    ranks = sorted({shape[0] for name, shape in shapes.items() if name.endswith("lora_A.weight")})
    return f"rank {', '.join(map(str, ranks))} on {len(shapes) // 2} layers"


def _write(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial, metadata=header)
    os.replace(partial, path)


def _state_path(path: Path) -> Path:
    return path.with_suffix(".optimizer.safetensors")
