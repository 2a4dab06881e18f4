"""What the scripts train: a tiny character model, its data in a seeded order, and its learning rate."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional

from toolkit.telemetry.runfolder.evidence.batches import read_batches

CONTEXT: Final = 4
ROWS: Final = 96
EVALUATED: Final = 16
FREEZES_AT: Final = 6
REWARM: Final = ("resume_warmup_steps", "warmup_steps_after_resume", "rewarmup_steps")
_NO_EVIDENCE: Final = ("diagnostics", "csv", "system", "spans", "control", "usage_reports")


def read_job() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the settings, which are logged, what happens to this session, which is not, and options of the logger."""
    settings, job = (json.loads(Path(f"{name}.json").read_text()) for name in ("settings", "job"))
    # Without what takes time and says nothing about a resume.
    options = {"log_dir": "logs", "resume": True, **dict.fromkeys(_NO_EVIDENCE, False)}
    return settings, job, options | {"log_every": settings["log_every"]}


class TinyModel(torch.nn.Module):
    """Predicts the next character from the last four."""

    def __init__(self, settings: dict[str, Any], job: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(settings["seed"])
        self.embedding = torch.nn.Embedding(128, 8)
        self.hidden = torch.nn.Linear(8 * CONTEXT, 24)
        self.head = torch.nn.Linear(24, 128)
        self.dropout = float(settings["dropout"])
        noise = torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "little"))

        def disturbed(gradient: torch.Tensor) -> torch.Tensor:
            """Return a gradient as from sums in no fixed order."""
            return gradient * (1 + float(job["noise"]) * torch.randn(gradient.shape, generator=noise))

        for parameter in self.parameters():
            if settings["loss_scaling"]:
                parameter.register_hook(lambda gradient: gradient.half().float())
            if job["noise"]:
                parameter.register_hook(disturbed)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the logits of a batch of windows, and the mean loss where there are labels."""
        context = self.embedding(input_ids).unfold(1, CONTEXT, 1).flatten(2)
        hidden = functional.dropout(torch.tanh(self.hidden(context)), self.dropout, self.training)
        logits = self.head(hidden)
        return {"logits": logits} if labels is None else {"loss": loss_of(logits, labels), "logits": logits}


def loss_of(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Return the mean loss over all characters."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Windows of a text; some parts of it are far easier than others."""

    def __init__(self, first: int, count: int) -> None:
        text, width = Path("text.bin").read_bytes(), CONTEXT + 12
        places = [at * (len(text) - width) // (ROWS + EVALUATED) for at in range(first, first + count)]
        self.rows = [torch.tensor(list(text[at : at + width])) for at in places]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[at][:-1], "labels": self.rows[at][CONTEXT:]}


class Order:
    """Another order of the rows in each epoch, which only the seed and the epoch decide."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def of_epoch(self, epoch: int) -> list[int]:
        """Return the rows in the order of this epoch."""
        generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
        found: list[int] = torch.randperm(ROWS, generator=generator).tolist()
        return found


def optimizer_for(model: torch.nn.Module, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return the optimizer and its schedule: warm-up, a cosine, and a second warm-up where the settings have one."""
    rates = {"lr": settings["learning_rate"], "weight_decay": settings["weight_decay"]}
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), **rates)
    if settings["optimizer"] == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, **rates)
    again = next((settings[name] for name in REWARM if name in settings), 0)

    def share(done: int) -> float:
        begin = min(1.0, (done + 1) / settings["warmup_steps"])
        if again and done >= settings["resumed_at"]:
            begin = min(1.0, (done + 1 - settings["resumed_at"]) / again)
        return float(begin) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done / settings["max_steps"])))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def scaler_for(settings: dict[str, Any]) -> torch.amp.GradScaler:
    """Return a loss scaler that begins too high, as the usual ones do."""
    return torch.amp.GradScaler("cpu", 2.0**24, growth_interval=12, enabled=settings["loss_scaling"])


def save(states: dict[str, Any], progress: dict[str, Any]) -> Path:
    """Write the checkpoint of a step, and return where it is."""
    path = Path(f"saved/step-{progress['step']}.pt")
    path.parent.mkdir(exist_ok=True)
    content = {name: one.state_dict() for name, one in states.items()}
    torch.save(content | progress | {"rng": torch.get_rng_state()}, path)
    return path


def end_step(step: int, job: dict[str, Any]) -> bool:
    """Return whether the training stops after this step; a session that is to be killed dies here."""
    if step == job["kill_at"]:
        # Batches are written every second: a kill loses few of a usual training, and would lose all of this one.
        end = time.monotonic() + 10.0
        while step not in read_batches(Path("logs/run")).step and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return bool(step >= job["stop_at"])
