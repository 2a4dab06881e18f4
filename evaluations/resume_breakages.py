"""What a broken checkpoint lacks or has wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from evaluations.resume_cases import PARTS, Case


def checkpoint_of(step: int) -> Path:
    """Return where the scripts save the checkpoint of a step."""
    return Path(f"saved/step-{step}.pt")


def break_checkpoint(case: Case, folder: Path, job: dict[str, Any]) -> None:
    """Break the checkpoint that `case` resumes from, or what its job says."""
    path = folder / checkpoint_of(case.saved_at)
    saved = torch.load(path, weights_only=False)
    if case.trainer == PARTS:
        _break_part(case, folder / "text.bin", saved)
        job["fault"] = case.kind
    else:
        earlier, other = folder / checkpoint_of(case.saved_at // 2), folder / "donor" / path.name
        _break(case, saved, torch.load(other if other.exists() else earlier, weights_only=False))
    torch.save(saved, path)


def _skipped(case: Case, position: int) -> int:
    """Return how many batches too many are skipped."""
    return max(position, 2) if case.how == "as many again" else max(case.overlap * _parts(case), 3)


def _parts(case: Case) -> int:
    return 2 if case.seed % 5 == 2 else 1


def _break(case: Case, saved: dict[str, Any], wrong: dict[str, Any]) -> None:
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


def _break_part(case: Case, text: Path, saved: dict[str, Any]) -> None:
    """Break what only some trainings have: the checkpoint, or the data."""
    if case.kind == "data content":
        data = text.read_bytes()
        ways = {"capitals": data.upper(), "without spaces": data.replace(b" ", b"")}
        text.write_bytes(ways.get(case.how, data[::-1]))
    elif case.kind == "ema":
        del saved["ema"]
    elif case.kind == "second optimizer":
        saved["second"]["state"] = {}
        saved["second"]["param_groups"][0]["lr"] *= 0.1 if case.how == "of no use" else 1.0
    elif case.kind == "replay buffer":
        rows = saved["replay"]
        other = [[(at + 7) % 96 for at in row] for row in rows]
        saved["replay"] = {"empty": [], "in another order": rows[::-1]}.get(case.how, other)
    elif case.kind == "precision" and case.how == "weights":
        weights = saved["model"].items()
        saved["model"] = {
            name: one.bfloat16().float() if one.is_floating_point() else one for name, one in weights
        }
