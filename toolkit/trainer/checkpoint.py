"""Checkpoints: the LoRA as other tools read it, and beside it what an exact resume needs."""

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

from toolkit.trainer.lora import Lora

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bf16": torch.bfloat16}
_STATE_SUFFIX = ".optimizer.safetensors"


class CheckpointError(Exception):
    """A checkpoint cannot be read, or does not fit the LoRA that the configuration asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """How far a training had got, besides its weights."""

    step: int = 0
    epoch: int = 1
    run_id: str | None = None
    lr_scale: float = 1.0
    best_val_loss: float | None = None
    epoch_loss_sum: float = 0.0
    """Of the epoch under way."""
    epoch_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """A checkpoint on disk, known by its header."""

    path: Path
    step: int
    epoch: int
    run_id: str | None
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
        return self._folder / (
            f"{self._name}.safetensors" if final else f"{self._name}_{step:09d}.safetensors"
        )

    def save(
        self,
        lora: Lora,
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
        *,
        about: Mapping[str, object],
        final: bool = False,
    ) -> Path:
        """Write a checkpoint, then remove the oldest ones on the way beyond those to keep; return its path.

        Each file appears under its name only when it is complete, and the LoRA comes last:
        where it is, its state is too.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self.path_of(state.step, final=final)
        weights = {name: parameter.detach() for name, parameter in lora.named_parameters()}
        _write(
            _state_path(path),
            weights | _optimizer_tensors(lora, optimizer),
            {"state": json.dumps(asdict(state))},
        )
        header = {
            "format": "pt",
            "name": self._name,
            "training_info": json.dumps({"step": state.step, "epoch": state.epoch}),
            "run_id": state.run_id or "",
            "saved_at": repr(time.time()),
            "lora": json.dumps(about),
        }
        _write(path, {name: tensor.to(self._dtype) for name, tensor in weights.items()}, header)
        self._remove_oldest()
        return path

    def latest(self) -> FoundCheckpoint | None:
        """Return the checkpoint that was written last, or None; files that are not checkpoints are skipped."""
        return max(self._readable(), key=lambda found: (found.saved_at, found.step), default=None)

    def _readable(self) -> list[FoundCheckpoint]:
        pattern = re.compile(re.escape(self._name) + r"(_\d{9,})?\.safetensors")
        candidates = [path for path in self._folder.glob("*.safetensors") if pattern.fullmatch(path.name)]
        found = []
        for path in candidates:
            try:
                found.append(read_header(path))
            except CheckpointError as error:
                print(f"[run] passing over {error}")
        return found

    def _remove_oldest(self) -> None:
        on_the_way = [found for found in self._readable() if found.path.name != f"{self._name}.safetensors"]
        on_the_way.sort(key=lambda found: (found.saved_at, found.step))
        for found in on_the_way[: -self._keep]:
            found.path.unlink(missing_ok=True)
            _state_path(found.path).unlink(missing_ok=True)


def read_header(path: Path) -> FoundCheckpoint:
    """Read what a checkpoint says about itself. Raises CheckpointError if it is missing, incomplete or not ours."""
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        info = json.loads(header["training_info"])
        return FoundCheckpoint(
            path=path,
            step=int(info["step"]),
            epoch=int(info["epoch"]),
            run_id=header.get("run_id") or None,
            saved_at=float(header.get("saved_at", 0.0)),
        )
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}, which cannot be read: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}, which has no training_info in its header") from error


def load(found: FoundCheckpoint, lora: Lora, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put a checkpoint's weights into `lora` and its moments into `optimizer`; return how far it had got.

    Without the file beside it the weights are taken as saved, and the optimizer starts afresh.

    Raises:
        CheckpointError: the file cannot be read, or holds a LoRA of another shape.
    """
    beside = _state_path(found.path)
    try:
        if not beside.exists():
            _fit(lora, load_file(found.path), found.path)
            print(f"[run] {beside.name} is not there: the optimizer starts afresh")
            return TrainingState(step=found.step, epoch=found.epoch, run_id=found.run_id)
        tensors = load_file(beside)
        with safe_open(beside, "pt") as file:
            state = TrainingState(**json.loads((file.metadata() or {})["state"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{beside} cannot be read: {error}") from error
    _fit(lora, tensors, found.path)
    _restore_optimizer(lora, optimizer, tensors)
    return state


def _fit(lora: Lora, tensors: Mapping[str, Tensor], path: Path) -> None:
    held = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.endswith(".weight")}
    if held != lora.shapes():
        raise CheckpointError(
            f"{path} holds another LoRA than the configuration asks for: "
            f"{_summary(held)}, not {_summary(lora.shapes())}"
        )
    lora.load(tensors)


def _summary(shapes: Mapping[str, tuple[int, ...]]) -> str:
    ranks = sorted({shape[0] for name, shape in shapes.items() if name.endswith("lora_A.weight")})
    return f"rank {', '.join(map(str, ranks))} on {len(shapes) // 2} layers"


def _optimizer_tensors(lora: Lora, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value
        for name, parameter in lora.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _restore_optimizer(lora: Lora, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    restored: dict[int, dict[str, Tensor]] = {}
    for place, (name, _) in enumerate(lora.named_parameters()):
        prefix = f"{name}/"
        moments = {
            key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
        }
        if moments:
            restored[place] = moments
    optimizer.load_state_dict({**optimizer.state_dict(), "state": restored})


def _write(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial, metadata=header)
    os.replace(partial, path)


def _state_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".safetensors") + _STATE_SUFFIX)
