"""What a broken checkpoint lacks or has wrong, by the form in which each trainer saves it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evaluations.resume_cases import CAUSES, Case


def checkpoint_of(trainer: str, step: int) -> Path:
    """Return where the trainer's script saves the checkpoint of a step."""
    forms = {
        "plain": f"saved/step-{step}.pt",
        "transformers": f"saved/checkpoint-{step}",
        "lightning": f"saved/step={step}.ckpt",
        "accelerate": f"saved/step-{step}",
    }
    return Path(forms[trainer])


def break_checkpoint(case: Case, folder: Path, job: dict[str, Any]) -> None:
    """Break the checkpoint that `case` resumes from, or what its job says about the data."""
    path = folder / checkpoint_of(case.trainer, case.saved_at)
    earlier = folder / checkpoint_of(case.trainer, case.saved_at // 2)
    other = folder / "donor" / path.name
    if case.kind in CAUSES:
        broken = {"plain": _plain, "lightning": _lightning}.get(case.trainer)
        if broken is not None:
            saved, wrong = (torch.load(one, weights_only=False) for one in (path, earlier))
            broken(case, saved, torch.load(other, weights_only=False) if other.exists() else wrong)
            torch.save(saved, path)
        else:
            _folder(case, path, other if other.exists() else earlier, job)


def _skipped(case: Case, position: int) -> int:
    """Return how many batches too many are skipped."""
    return max(position, 2) if case.how == "as many again" else max(case.overlap * _parts(case), 3)


def _parts(case: Case) -> int:
    return 2 if case.seed % 5 == 2 else 1


def _plain(case: Case, saved: dict[str, Any], wrong: dict[str, Any]) -> None:
    lost = {
        "optimizer_lost": "optimizer",
        "schedule_restarted": "scheduler",
        "scaler_lost": "scaler",
        "rng": "rng",
    }
    saved.pop(lost.get(case.kind, ""), None)
    if case.kind == "data_from_start":
        saved["position"] = 0
        saved["epoch"] *= case.how != "of the training"
    elif case.kind == "data_skipped":
        saved["position"] += _skipped(case, saved["position"])
    elif case.kind == "wrong_checkpoint":
        for name in ("model", "optimizer") if case.how == "of another run" else ("model",):
            saved[name] = wrong[name]


def _lightning(case: Case, saved: dict[str, Any], wrong: dict[str, Any]) -> None:
    loaders = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    if case.kind == "optimizer_lost":
        saved["optimizer_states"][0]["state"] = {}
    elif case.kind == "schedule_restarted":
        _restart(saved["lr_schedulers"][0])
    elif case.kind == "rng":
        del saved["callbacks"]["RandomNumbers"]
    elif case.kind == "scaler_lost":
        del saved["HalfGradients"]
    elif case.kind == "data_from_start":
        loaders.clear()
    elif case.kind == "data_skipped":
        loaders[0]["position"] += _skipped(case, loaders[0]["position"])
    elif case.kind == "wrong_checkpoint":
        for name in ("state_dict", "optimizer_states") if case.how == "of another run" else ("state_dict",):
            saved[name] = wrong[name]


def _folder(case: Case, path: Path, wrong: Path, job: dict[str, Any]) -> None:
    """Break a checkpoint folder of Accelerate, or of the Trainer, which uses it."""
    is_trainer = case.trainer == "transformers"
    if case.kind == "optimizer_lost":
        _edit(
            path / ("optimizer.pt" if is_trainer else "optimizer.bin"), lambda state: state["state"].clear()
        )
    elif case.kind == "schedule_restarted":
        _edit(path / ("scheduler.pt" if is_trainer else "scheduler.bin"), _restart)
    elif case.kind == "rng":
        (path / ("rng_state.pth" if is_trainer else "random_states_0.pkl")).unlink()
    elif case.kind == "scaler_lost":
        fresh = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=12).state_dict()
        torch.save(fresh, path / "scaler.pt")
    elif case.kind == "wrong_checkpoint":
        optimizer = "optimizer.pt" if is_trainer else "optimizer.bin"
        for name in (
            ("model.safetensors", optimizer) if case.how == "of another run" else ("model.safetensors",)
        ):
            shutil.copy(wrong / name, path / name)
    elif case.kind.startswith("data_") and not is_trainer:
        progress = json.loads((path / "progress.json").read_text())
        if case.kind == "data_skipped":
            progress["position"] += _skipped(case, progress["position"])
        else:
            progress |= {"position": 0, "epoch": 0 if case.how == "of the training" else progress["epoch"]}
        (path / "progress.json").write_text(json.dumps(progress))
    elif case.kind == "data_skipped":
        size = 8 // _parts(case)
        position = case.saved_at * _parts(case) % (96 // size)
        # The Trainer skips what was used as well; both together must leave a batch of the epoch.
        job["skip"] = min(size * _skipped(case, position), 96 - (position + _parts(case)) * size)


def _edit(path: Path, change: Callable[[Any], None]) -> None:
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


def _restart(schedule: dict[str, Any]) -> None:
    schedule |= {"last_epoch": 0, "_step_count": 1}
