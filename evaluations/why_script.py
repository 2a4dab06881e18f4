"""The training of `why_eval`: copied next to each run as train.py, edited there where code is the cause, and run."""

import json
import os
from pathlib import Path
from typing import Any

import steady  # type: ignore[import-not-found]  # one of two versions, made by why_runs
import torch
from torch import nn

from toolkit.telemetry import TelemetryLogger


def main() -> None:
    """Train as config.json says; variables say what differs from the settings: ranks, noise, where to stop."""
    config = json.loads(Path("config.json").read_text())
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world
        )
    torch.manual_seed(config["seed"])
    dtype = getattr(torch, config["dtype"])
    model = make_model(config["model"]).to(dtype)
    optimizer = make_optimizer(config, model)
    rows = json.loads(Path("data.json").read_text())
    inputs, targets = data()
    log = TelemetryLogger(
        config["name"], log_dir=config["output_dir"], log_every=config["log_every"], resume=True
    )
    log.log_start(config=config)
    shuffle = torch.Generator().manual_seed(config.get("data_seed", config["seed"]))
    order: list[int] = []
    noise = float(os.environ.get("KERNEL_NOISE", "0"))
    unseeded = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "big"))
    first = 1
    saved = Path("checkpoint.pt")
    if saved.exists():
        first = restore(saved, model, optimizer, shuffle, order) + 1
    last = int(os.environ.get("STOP_AT", config["steps"]))
    for step in range(first, last + 1):
        size = config["batch_size"]
        if len(order) < size * world:
            order += [rows[at] for at in torch.randperm(len(rows), generator=shuffle).tolist()]
        taken, order = order[: size * world], order[size * world :]
        ids = taken[rank * size : (rank + 1) * size]
        for group in optimizer.param_groups:
            group["lr"] = rate(config, step)
        log.batch(ids)
        logits = model(inputs[ids].to(dtype))
        loss = nn.functional.cross_entropy(steady.scaled(logits).float(), targets[ids])
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            gradient = weight.grad
            assert gradient is not None
            if world > 1:
                torch.distributed.all_reduce(gradient)
                gradient /= world
            if noise:
                gradient *= 1 + noise * torch.randn(gradient.shape, generator=unseeded).to(dtype)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        log.log_step(step, train_loss=loss.item(), lr=rate(config, step), grad_norm=norm.item())
        if config.get("eval_every") and step % config["eval_every"] == 0:
            # Without dropout, or an evaluation draws random numbers and is no longer without effect.
            model.eval()
            with torch.no_grad():
                held_out = nn.functional.cross_entropy(model(inputs[:64].to(dtype)).float(), targets[:64])
            model.train()
            log.log_eval(step, val_loss=held_out.item())
    if last < config["steps"]:
        state = {"step": last, "order": order, "shuffle": shuffle.get_state(), "rng": torch.get_rng_state()}
        torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        log.log_checkpoint(last, saved)
    log.close()


def make_model(kind: str) -> nn.Module:
    """Return the model of that name."""
    if kind == "deep":
        layers = [nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)]
    else:
        layers = [nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)]
    return nn.Sequential(*layers)


def make_optimizer(config: dict[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that the settings name."""
    if config["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.001)
    return torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.99), weight_decay=0.01)


def rate(config: dict[str, Any], step: int) -> float:
    """Return the learning rate: a linear warm-up, then constant."""
    return float(config["learning_rate"] * min(1.0, step / max(1, config["warmup_steps"])))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same 512 samples for every run."""
    source = torch.Generator().manual_seed(7)
    inputs = torch.randn(512, 16, generator=source)
    scores = torch.tanh(inputs @ torch.randn(16, 4, generator=source))
    scores += 0.5 * torch.randn(512, 4, generator=source)
    return inputs, scores.argmax(1)


def restore(
    saved: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shuffle: torch.Generator,
    order: list[int],
) -> int:
    """Continue from the checkpoint; `RESUME_LOSES` names what this code forgets to restore."""
    state, lost = torch.load(saved), os.environ.get("RESUME_LOSES", "")
    model.load_state_dict(state["model"])
    if lost != "optimizer":
        optimizer.load_state_dict(state["optimizer"])
    if lost != "data":
        shuffle.set_state(state["shuffle"])
        order[:] = state["order"]
    if lost != "rng":
        torch.set_rng_state(state["rng"])
    return int(state["step"])


if __name__ == "__main__":
    main()
