"""A training whose checkpoint holds more than usual ones: an average of the weights, two optimizers, a replay buffer.

What this session gets wrong is in its job, as `fault` and `how`; none of it is in the settings or the code.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from evaluations.resume_scripts import task
from toolkit.telemetry import TelemetryLogger

settings, job, options = task.read_job()
fault, how = job["fault"], job["how"]
rows, order = task.Windows(0, task.ROWS), task.Order(settings["data_seed"])
marks = sorted(set(Path(settings["train_file"]).read_bytes()))
size, width = settings["batch_size"], 8 * task.CONTEXT
names = torch.zeros(128, dtype=torch.long)
names[marks] = torch.arange(len(marks))
if fault == "vocabulary":
    mixed = torch.Generator().manual_seed(5)
    ways = {
        "in another order": torch.randperm(len(marks), generator=mixed),
        "reversed": torch.arange(len(marks)).flip(0),
    }
    names[marks] = ways.get(how, (torch.arange(len(marks)) + 1) % len(marks))


class Net(nn.Module):
    """Predicts the next character, with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 8)
        self.hidden, self.norm = nn.Linear(width, 24), nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of each character of the windows."""
        context = self.embedding(ids).unfold(1, task.CONTEXT, 1).flatten(2)
        hidden = torch.tanh(self.norm(self.hidden(context).transpose(1, 2)).transpose(1, 2))
        logits: torch.Tensor = self.head(functional.dropout(hidden, settings["dropout"], self.training))
        return logits


def batch_of(ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of these rows."""
    inputs, labels = (names[torch.stack([rows[at][name] for at in ids])] for name in ("input_ids", "labels"))
    if fault == "labels":
        ways = {"shifted by one": labels.roll(1, 1), "of another class": (labels + 1) % len(marks)}
        labels = ways.get(how, labels.flip(0))
    return inputs, labels


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all characters."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


torch.manual_seed(settings["seed"])
model = Net()
noise = torch.Generator()
noise.seed()
for weight in model.parameters() if job["noise"] else ():
    weight.register_hook(lambda one: one * (1 + job["noise"] * torch.randn(one.shape, generator=noise)))
ema = copy.deepcopy(model)
inner = [*model.hidden.parameters(), *model.norm.parameters(), *model.head.parameters()]
optimizer = torch.optim.AdamW(inner, lr=settings["learning_rate"])
second = torch.optim.SGD(model.embedding.parameters(), lr=0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 5) * 0.99**done)
replay: list[list[int]] = []
states: dict[str, Any] = {
    "model": model,
    "ema": ema,
    "optimizer": optimizer,
    "second": second,
    "scheduler": scheduler,
}
step, epoch, position, done = 0, 0, 0, False
if job["resume_from"]:
    saved = torch.load(job["resume_from"], weights_only=False)
    step, epoch, position, replay = saved["step"], saved["epoch"], saved["position"], saved["replay"]
    for name, one in states.items():
        if name in saved:
            one.load_state_dict(saved[name])
    if fault == "ema":
        ema = copy.deepcopy(Net() if how == "begun again" else model)
    elif fault == "batch norm":
        model.norm.reset_running_stats()
    torch.set_rng_state(saved["rng"])
says: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
if job["says"] == "everything":
    says |= {
        "optimizer": {"main": optimizer, "embedding": second},
        "ema": ema,
        "replay": torch.tensor(replay),
    }

with TelemetryLogger("run", **options) as log:
    log.log_start(config=settings, training={"batch_size": size}, resumed_from_step=step or None)
    if job["resume_from"]:
        log.state("load", step, checkpoint=job["resume_from"], epoch=epoch, data_position=position, **says)
    while not done:
        ids = order.of_epoch(epoch)
        while not done and (position + 1) * size <= len(ids):
            taken = ids[position * size : (position + 1) * size]
            log.batch(taken)
            inputs, labels = batch_of(taken)
            if settings["frozen_norm"] and step >= task.FREEZES_AT:
                model.norm.eval()
            with torch.autocast("cpu", torch.bfloat16, enabled=fault == "precision" and how == "autocast"):
                loss = loss_of(model(inputs), labels)
                if settings["teacher"]:
                    target = ema(inputs).detach().float().softmax(-1)
                    loss = loss - 0.1 * (target * model(inputs).float().log_softmax(-1)).sum(-1).mean()
                if replay:
                    again = batch_of(replay[int(torch.randint(len(replay), ()))])
                    loss = loss + 0.3 * loss_of(model(again[0]), again[1])
            loss.backward()
            if fault == "precision" and how == "gradients":
                for weight in model.parameters():
                    weight.grad = None if weight.grad is None else weight.grad.bfloat16().float()
            rate = scheduler.get_last_lr()[0]
            optimizer.step()
            second.step()
            scheduler.step()
            model.zero_grad()
            replay = [*replay[-15:], taken]
            with torch.no_grad():
                for average, weight in zip(ema.parameters(), model.parameters(), strict=True):
                    average.lerp_(weight, 0.1)
            position += 1
            step += 1
            log.log_step(step, train_loss=loss, lr=rate, epoch=epoch)
            if step == job["save_at"]:
                progress = {"step": step, "epoch": epoch, "position": position, "replay": replay}
                path = task.save(states, progress)
                log.log_checkpoint(step, path)
                says |= {"replay": torch.tensor(replay)} if "replay" in says else {}
                log.state("save", step, checkpoint=path, epoch=epoch, data_position=position, **says)
            done = task.end_step(step, job)
        epoch, position = epoch + 1, 0
