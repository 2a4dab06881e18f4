"""The training loop of the made curves: real steps of real models, with what a cause changes in its place."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from evaluations.made_curves.settings import Columns, Settings
from evaluations.made_curves.tasks import Task, task_of

_MIB = 1024 * 1024


def train(settings: Settings) -> Columns:
    """Train, and return what was logged: columns of steps and of evaluations.

    The same settings give the same losses; times and memory are measured.
    """
    torch.set_num_threads(1)
    task = task_of(settings)
    weights = list(task.spare if settings.frozen else task.parameters())
    optimizer = _optimizer(settings, weights)
    noise = settings.seed * 100_003 + settings.order_seed * 7919
    order = torch.Generator().manual_seed(noise)
    columns: Columns = {name: [] for name in ("step", "train_loss", "lr", "grad_norm")}
    columns |= {name: [] for name in ("step_time_s", "data_time_s", "rss_mib", *task.metrics)}
    evaluations: Columns = {"eval_step": [], "val_loss": []}
    kept: list[Tensor] = []
    since: list[float] = []
    waited = 0.0
    last_record = time.perf_counter()
    half_scale = settings.half_scale
    for step in range(1, settings.steps + 1):
        # A step draws as many random numbers with a fault as without one: twins have the same noise.
        torch.manual_seed(noise + step)
        if step == settings.state_lost_step:
            optimizer = _optimizer(settings, weights)
        began = time.perf_counter()
        x, y = _batch(task, settings, step, order)
        waited += time.perf_counter() - began
        rate = settings.lr_at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        task.rate = rate
        optimizer.zero_grad()
        loss = task.loss(x, y)
        if step in settings.long_steps:
            loss = loss * settings.long_size
        value = float(loss.detach())
        norm = math.nan
        if math.isfinite(value):
            loss.backward()
            if half_scale:
                _in_half_precision(weights, half_scale)
                half_scale *= 2.0 if step % settings.half_doubles == 0 else 1.0
            norm = float(torch.nn.utils.clip_grad_norm_(weights, settings.clip or math.inf))
            optimizer.step()
        since.append(value)
        if settings.leak_mib:
            kept.append(torch.ones(int(settings.leak_mib * _MIB) // 4))
        if step % settings.log_every == 0:
            now = time.perf_counter()
            logged = sum(since) / len(since) if settings.logs == "mean" else value
            rows = (step, logged, rate, norm, (now - last_record) / len(since), waited / len(since))
            for name, one in zip(columns, rows, strict=False):
                columns[name].append(one)
            columns["rss_mib"].append(_memory_mib())
            for name in task.metrics:
                columns[name].append(task.metrics[name])
            since, waited = [], 0.0
            last_record = now
        if task.has_val and settings.eval_every and step % settings.eval_every == 0:
            paused = time.perf_counter()
            evaluations["eval_step"].append(step)
            evaluations["val_loss"].append(_evaluate(task, settings, step))
            # An evaluation is not a part of the time of a step.
            last_record += time.perf_counter() - paused
    return {**columns, **evaluations} if evaluations["eval_step"] else columns


def _optimizer(settings: Settings, weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=1.0, momentum=0.9, weight_decay=settings.weight_decay)
    betas = (0.9, settings.beta2)
    return torch.optim.AdamW(weights, lr=1.0, betas=betas, weight_decay=settings.weight_decay, fused=True)


def _batch(task: Task, settings: Settings, step: int, order: torch.Generator) -> tuple[Tensor, Tensor]:
    rows = torch.randint(len(task.x), (settings.batch,), generator=order)
    if settings.repeats_from is not None and step >= settings.repeats_from:
        rows = torch.arange(settings.batch) % len(task.x)
    x, y = task.x[rows], task.y[rows]
    if settings.slow_from is not None and step >= settings.slow_from:
        time.sleep(settings.slow_s)
    dice = torch.Generator().manual_seed(step)
    if settings.wrong_labels_from is not None and step >= settings.wrong_labels_from:
        wrong = torch.rand(len(y), generator=dice) < settings.wrong_labels
        y = y.clone()
        y[wrong] = task.y[torch.randint(len(task.y), (int(wrong.sum()),), generator=dice)]
    if settings.other_data_from is not None and step >= settings.other_data_from:
        x, y = _other(x), y.flip(-1) if y.dim() > 1 else y
    if step in settings.bad_steps:
        x, y = _spoiled(x, settings.bad_size), _spoiled(y, settings.bad_size)
    return x, y


def _spoiled(values: Tensor, size: float) -> Tensor:
    """Return values times `size`; tokens and classes cannot be multiplied, and become others."""
    return values * size if values.is_floating_point() else (values * 7 + 3) % (int(values.max()) + 1)


def _other(values: Tensor) -> Tensor:
    """Return values of another source: mirrored, or with other tokens."""
    return values.flip(-1) if values.is_floating_point() else (values * 5 + 1) % (int(values.max()) + 1)


def _in_half_precision(weights: list[torch.nn.Parameter], scale: float) -> None:
    with torch.no_grad():
        for one in weights:
            if one.grad is not None:
                one.grad.copy_((one.grad * scale).half().float() / scale)


def _evaluate(task: Task, settings: Settings, step: int) -> float:
    x, y = task.val_x, task.val_y
    if step in settings.broken_evals:
        # Data that was not prepared as in training.
        x = x * 2.5 + 0.5 if x.is_floating_point() else _other(x)
    torch.manual_seed(1)
    with torch.no_grad():
        return float(task.loss(x, y))


def _memory_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / _MIB
