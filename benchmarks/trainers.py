"""How much a logger slows down a small training run: ours, W&B offline and TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import SLOWDOWN, Claim, Report, no_slower, slowdown, slowdown_cells

NOTHING: Final = "nothing"
OURS: Final = "ours"
OURS_PHASES: Final = "ours_phases"
OURS_OFF: Final = "ours_off"
WANDB: Final = "wandb"
TENSORBOARD: Final = "tensorboard"

_TITLES: Final = {
    NOTHING: "nothing (the noise)",
    OURS: "ours, with defaults",
    OURS_PHASES: "ours, `phases=True`",
    OURS_OFF: "ours, `enabled: false`",
    WANDB: "W&B offline",
    TENSORBOARD: "TensorBoard",
}
_NEEDS: Final = {WANDB: "wandb", TENSORBOARD: "tensorboard"}

# The first steps include warm-up and the logger's start.
_SETTLING: Final = 15
_LOG_EVERY: Final = 10
_MOST_US: Final = 60.0
"""Of the training's thread in each step."""
_HOOKS: Final = ("on_", "log", "setup", "teardown", "save", "finalize", "_begin_update")
"""What the names of a logger's hooks begin with; the last is ours in torch's optimizer."""


class Hooks:
    """Processor time of the training's thread in the hooks of a logger, measured around each of their calls.

    The difference of two trainings does not show it: on a busy machine, even the processor time of a step differs by a
    hundred times as much from one training to the next.
    """

    def __init__(self) -> None:
        self.ends: list[float] = []
        """When each step ended, by the wall clock."""
        self.spent = [0.0]
        """Of each step, up to its end."""
        self._is_inside = False

    def end_step(self) -> None:
        """Note that a step has ended."""
        self.ends.append(time.perf_counter())
        self.spent.append(0.0)

    def watch(self, logger: Any) -> None:
        """Measure all hooks of an object."""
        for name in dir(logger):
            if name.startswith(_HOOKS) and callable(getattr(type(logger), name, None)):
                setattr(logger, name, self.measured(getattr(logger, name)))

    def measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, measured unless it is made by another one."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return call(*args, **kwargs)
            self._is_inside, began = True, time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[-1] += time.thread_time() - began
                self._is_inside = False

        return measured


def build(options: Options) -> Report:
    """Measure each logger in its own process, alternating runs with and without it."""
    turns, steps = (2, 40) if options.quick else (8, 50)
    asked = [name for name in _TITLES if not options.only or name.partition("_")[0] in options.only]
    absent = {name for name, package in _NEEDS.items() if importlib.util.find_spec(package) is None}
    notes = [
        f"the trainers log every {_LOG_EVERY} steps, with or without a logger; the loop of Accelerate logs every step",
        SLOWDOWN,
        f"µs a step: processor time of the training's thread in the logger's hooks, after {_SETTLING} steps (mean)",
        *(f"{_TITLES[name]}: not measured, {_NEEDS[name]} not installed" for name in asked if name in absent),
    ]
    figures: dict[str, dict[str, dict[str, float]]] = {}
    rows: list[list[str]] = []
    claims: list[Claim] = []
    for package, (title, _) in FRAMEWORKS.items():
        if importlib.util.find_spec(package) is None:
            notes.append(f"{title}: not measured, {package} not installed")
            continue
        found = figures[package] = {}
        for name in asked:
            if name not in absent and (package, name) != ("accelerate", OURS_PHASES):
                say(f"{title}: {_TITLES[name]}")
                found[name] = _summary(**measure_in_child(time_turns, package, name, turns, steps))
                rows.append([title, _TITLES[name], *_cells(found[name])])
        claims += _claims(title, found)
    return Report(
        name="trainers",
        title="A small training run with and without a logger",
        columns=["trainer", "logger", "ms per step without", "with", "slowdown", "quartiles", "µs a step"],
        rows=rows,
        figures=figures,
        claims=claims,
        notes=notes,
    )


def time_turns(folder: Path, framework: str, name: str, turns: int, steps: int) -> dict[str, list[float]]:
    """Return seconds per step in trainings without the logger and with it, alternating, and those in its hooks."""
    # Loggers write files into the working directory, and none may use the network.
    os.chdir(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    import torch

    from toolkit.telemetry.core.guard import Guard

    _, train = FRAMEWORKS[framework]
    # Models this small gain nothing from a second thread; its waiting would be measured instead.
    torch.set_num_threads(1)
    took: dict[str, list[float]] = {"bare": [], "logged": [], "in_hooks": []}
    for turn in range(turns + 1):
        # The second meets a warmer machine, so the order alternates.
        for role in ("bare", "logged") if turn % 2 else ("logged", "bare"):
            into = folder / f"{turn}-{role}"
            into.mkdir()
            hooks, logger = Hooks(), name if role == "logged" else NOTHING
            with ExitStack() as stack:
                if logger == OURS_PHASES:
                    # What is called around the trainer's methods.
                    stack.enter_context(mock.patch.object(Guard, "call", hooks.measured(Guard.call)))
                train(into, logger, steps + _SETTLING, hooks)
            if logger == WANDB:
                import wandb

                # It would otherwise continue during the next one.
                wandb.finish()
            # The first turn loads code and touches memory for the first time.
            if turn:
                took[role].append((hooks.ends[-1] - hooks.ends[_SETTLING - 1]) / steps)
                took["in_hooks"] += [sum(hooks.spent[_SETTLING:-1]) / steps] if role == "logged" else []
    return took


def _train_with_transformers(folder: Path, name: str, steps: int, hooks: Hooks) -> None:
    import torch
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            hooks.end_step()

    callbacks: list[Any] = [Watch()]
    if name in (OURS, OURS_PHASES, OURS_OFF):
        from toolkit.telemetry.integrations.transformers import TelemetryCallback

        phases = name == OURS_PHASES
        callbacks.append(TelemetryCallback(log_dir=str(folder), enabled=name != OURS_OFF, phases=phases))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    make_model: Callable[[Any], Any] = LlamaForCausalLM
    rows = torch.randint(0, 256, (256, 32))
    trainer = Trainer(
        model=make_model(config),
        args=TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=4,
            max_steps=steps,
            logging_steps=_LOG_EVERY,
            save_strategy="no",
            report_to=[name] if name in _NEEDS else "none",
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=callbacks,
    )
    # Exclude the time of a slow terminal.
    trainer.remove_callback(PrinterCallback)
    loggers = [
        one
        for one in trainer.callback_handler.callbacks
        if type(one).__module__.startswith(("toolkit.", "transformers.integrations."))
    ]
    for logger in loggers:
        hooks.watch(logger)
    trainer.train()


def _train_with_lightning(folder: Path, name: str, steps: int, hooks: Hooks) -> None:
    import logging
    import warnings

    import lightning
    import torch

    # Lightning's advice for real trainings does not apply here.
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Watch(lightning.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            hooks.end_step()

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(256, 256) for _ in range(6)]
            self.layers = torch.nn.Sequential(
                *(part for layer in layers for part in (layer, torch.nn.ReLU()))
            )

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            del batch_idx
            loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[0])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    callbacks: list[Any] = [Watch()]
    logger: Any = False
    if name in (OURS, OURS_PHASES, OURS_OFF):
        from toolkit.telemetry.integrations.lightning import TelemetryCallback, TelemetryLightningLogger

        logger = TelemetryLightningLogger(log_dir=str(folder), enabled=name != OURS_OFF)
        callbacks.append(TelemetryCallback(phases=name == OURS_PHASES))
    elif name == WANDB:
        from lightning.pytorch.loggers import WandbLogger

        logger = WandbLogger(save_dir=str(folder), offline=True)
    elif name == TENSORBOARD:
        from lightning.pytorch.loggers import TensorBoardLogger

        logger = TensorBoardLogger(str(folder))
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        log_every_n_steps=_LOG_EVERY,
        logger=logger,
        callbacks=callbacks,
        default_root_dir=str(folder),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = torch.utils.data.TensorDataset(torch.randn(4096, 256))
    for one in (*callbacks[1:], *trainer.loggers):
        hooks.watch(one)
    trainer.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=32))


def _train_with_accelerate(folder: Path, name: str, steps: int, hooks: Hooks) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        # Of the training before.
        state._reset_state()  # noqa: SLF001
    tracker: Any = None
    if name in (OURS, OURS_OFF):
        from toolkit.telemetry.integrations.accelerate import TelemetryTracker

        tracker = TelemetryTracker(log_dir=str(folder), enabled=name != OURS_OFF)
        hooks.watch(tracker)
    log_with = tracker or (name if name in _NEEDS else None)
    accelerator = Accelerator(cpu=True, log_with=log_with, project_dir=str(folder))
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 256)), batch_size=32)
    net = torch.nn.Sequential(*layers)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4), rows)
    if tracker is not None:
        tracker.watch(accelerator)
    accelerator.init_trackers("bench")
    if tracker is None:
        for one in accelerator.trackers:
            hooks.watch(one)
    for step, (batch,) in zip(range(1, steps + 1), loader, strict=False):
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"train_loss": loss.detach(), "lr": 1e-4}, step=step)
        hooks.end_step()
    accelerator.end_training()


FRAMEWORKS: Final = {
    "transformers": ("Hugging Face Trainer", _train_with_transformers),
    "lightning": ("Lightning", _train_with_lightning),
    "accelerate": ("Accelerate", _train_with_accelerate),
}
"""By its package, a trainer, with a function that trains once by it."""


def _summary(bare: list[float], logged: list[float], in_hooks: list[float]) -> dict[str, float]:
    return {
        "without_ms": statistics.median(bare) * 1e3,
        "with_ms": statistics.median(logged) * 1e3,
        **slowdown([own / none - 1 for own, none in zip(logged, bare, strict=True)]),
        "thread_us": statistics.median(in_hooks) * 1e6,
    }


def _cells(found: dict[str, float]) -> list[str]:
    milliseconds = [f"{found[name]:.2f}" for name in ("without_ms", "with_ms")]
    return [*milliseconds, *slowdown_cells(found), f"{found['thread_us']:.0f}"]


def _claims(title: str, found: dict[str, dict[str, float]]) -> list[Claim]:
    claims = []
    if OURS_OFF in found and NOTHING in found:
        text = f"{title}: slowdown while switched off"
        claims.append(no_slower(text, found[OURS_OFF], found[NOTHING]))
    if OURS in found:
        text, measured = f"{title}: time of the training's thread in a step", found[OURS]["thread_us"]
        claims.append(Claim(text=text, measured=measured, limit=_MOST_US, unit=" µs"))
    if OURS in found and WANDB in found:
        ours, theirs = found[OURS], found[WANDB]
        claims.append(
            Claim(
                text=f"{title}: slowdown with ours, against W&B offline's",
                measured=round(ours["slowdown"] * 100, 2),
                limit=round(theirs["slowdown"] * 100, 2),
                unit=" %",
                too_noisy=ours["slowdown_q3"] > theirs["slowdown_q1"]
                and theirs["slowdown_q3"] > ours["slowdown_q1"],
            )
        )
    return claims


if __name__ == "__main__":
    run_alone(build)
