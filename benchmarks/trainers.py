"""How much a logger slows down a small training run: ours, W&B offline and TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report, interval_of_median, median_and_quartiles

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
_HOOKS: Final = ("on_", "log_", "setup", "teardown", "save", "finalize")
"""What the names of a logger's hooks begin with."""
# Beyond this, "no difference" would only mean that the machine was busy.
_WIDEST_MARGIN: Final = 0.01
_PAIRS: Final = 6
"""Fewer pairs of trainings may all differ in the same direction by chance, so they decide nothing."""


class Hooks:
    """Processor time of the training's thread in the hooks of a logger, measured around each of their calls.

    The difference of two trainings does not show it: on a busy machine, even the processor time of a step differs by a
    hundred times as much from one training to the next.
    """

    def __init__(self, nothing: Hooks | None = None) -> None:
        self.ends: list[float] = []
        """When each step ended, by the wall clock."""
        self.nothing = nothing or Hooks(self)
        """The same of a callback that does nothing, in the same training: what measuring a call takes there."""
        self.spent, self.calls = [0.0], [0]
        """Of each step, up to its end."""
        self._is_inside = False

    def end_step(self) -> None:
        """Note that a step has ended."""
        self.ends.append(time.perf_counter())
        for hooks in (self, self.nothing):
            hooks.spent.append(0.0)
            hooks.calls.append(0)

    def seconds(self, first: int, last: int | None) -> float:
        """Return the seconds in hooks in these steps, without what measuring them took."""
        empty_s = sum(self.nothing.spent) / max(1, sum(self.nothing.calls))
        return sum(self.spent[first:last]) - empty_s * sum(self.calls[first:last])

    def watch(self, owner: Any, *names: str) -> None:
        """Measure these calls of an object or class, by default all of its hooks."""
        found = [name for name in dir(owner) if name.startswith(_HOOKS)]
        for name in names or [name for name in found if callable(getattr(type(owner), name, None))]:
            setattr(owner, name, self.measured(getattr(owner, name)))

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
                self.calls[-1] += 1
                self._is_inside = False

        return measured


@dataclass(frozen=True, slots=True)
class Framework:
    """A trainer, with a function that trains once by it."""

    title: str
    package: str
    train: Callable[[Path, str, int, Hooks], None]


def build(options: Options) -> Report:
    """Measure each logger in its own process, alternating runs with and without it."""
    turns, steps = (2, 40) if options.quick else (8, 50)
    asked = [name for name in _TITLES if not options.only or name.partition("_")[0] in options.only]
    absent = {name for name, package in _NEEDS.items() if importlib.util.find_spec(package) is None}
    notes = [
        f"the trainers log every {_LOG_EVERY} steps, with or without a logger",
        "slowdown: median over pairs of runs with and without the logger, then the two quartiles",
        f"µs a step: processor time of the training's thread in the logger's hooks, after {_SETTLING} steps (mean)",
        "once: the same of the first training of a process, with imports and opening, beyond that of its steps",
        *(f"{_TITLES[name]}: not measured, {_NEEDS[name]} not installed" for name in asked if name in absent),
    ]
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for key, framework in FRAMEWORKS.items():
        if importlib.util.find_spec(framework.package) is None:
            notes.append(f"{framework.title}: not measured, {framework.package} not installed")
            continue
        figures[key] = {}
        for name in asked:
            if name not in absent:
                say(f"{framework.title}: {_TITLES[name]}")
                figures[key][name] = _summary(measure_in_child(time_turns, key, name, turns, steps))
    return Report(
        name="trainers",
        title="A small training run with and without a logger",
        columns=[
            "trainer",
            "logger",
            "ms per step without",
            "with",
            "slowdown",
            "quartiles",
            "once, ms",
            "µs a step",
        ],
        rows=[
            [
                FRAMEWORKS[key].title,
                _TITLES[name],
                f"{figure['without_ms']:.2f}",
                f"{figure['with_ms']:.2f}",
                f"{figure['slowdown']:+.1%}",
                f"{figure['slowdown_q1']:+.1%} … {figure['slowdown_q3']:+.1%}",
                f"{figure['once_ms']:.0f}",
                f"{figure['thread_us']:.0f}",
            ]
            for key, found in figures.items()
            for name, figure in found.items()
        ],
        figures=figures,
        claims=[claim for key, found in figures.items() for claim in _claims(FRAMEWORKS[key].title, found)],
        notes=notes,
    )


def time_turns(folder: Path, framework: str, name: str, turns: int, steps: int) -> dict[str, list[float]]:
    """Return seconds per step in trainings without the logger and with it, alternating, and those in its hooks."""
    # Loggers write files into the working directory, and none may use the network.
    os.chdir(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    import torch

    # Models this small gain nothing from a second thread; its waiting would be measured instead.
    torch.set_num_threads(1)
    train = FRAMEWORKS[framework].train
    took: dict[str, list[float]] = {"without": [], "with": [], "in_hooks": [], "once": []}
    for turn in range(turns + 1):
        # The second meets a warmer machine, so the order alternates.
        roles = ("without", "with") if turn % 2 else ("with", "without")
        for role in roles:
            into = folder / f"{turn}-{role}"
            into.mkdir()
            hooks = Hooks()
            train(into, name if role == "with" else NOTHING, steps + _SETTLING, hooks)
            in_hooks = hooks.seconds(_SETTLING, -1) / steps
            if turn:
                took[role].append((hooks.ends[-1] - hooks.ends[_SETTLING - 1]) / steps)
            if role == "with":
                # The first turn loads code and touches memory for the first time.
                once = hooks.seconds(0, _SETTLING) - _SETTLING * in_hooks
                took["in_hooks" if turn else "once"].append(in_hooks if turn else once)
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

    callbacks: list[Any] = [Watch(), nothing := TrainerCallback()]
    if name in (OURS, OURS_PHASES, OURS_OFF):
        options = {"enabled": name != OURS_OFF, "phases": name == OURS_PHASES}
        ours = hooks.measured(lambda: import_module("toolkit.telemetry.integrations.transformers"))()
        callbacks.append(ours.TelemetryCallback(log_dir=str(folder), **options))
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
    hooks.nothing.watch(nothing)
    with _watching(hooks, loggers, name):
        trainer.train()
    _end_wandb(name)


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

    callbacks: list[Any] = [Watch(), nothing := lightning.Callback()]
    logger: Any = False
    if name in (OURS, OURS_PHASES, OURS_OFF):
        ours = hooks.measured(lambda: import_module("toolkit.telemetry.integrations.lightning"))()
        logger = ours.TelemetryLightningLogger(log_dir=str(folder), enabled=name != OURS_OFF)
        callbacks.append(ours.TelemetryCallback(phases=name == OURS_PHASES))
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
    hooks.nothing.watch(nothing)
    with _watching(hooks, [*callbacks[2:], *trainer.loggers], name):
        trainer.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=32))
    _end_wandb(name)


@contextmanager
def _watching(hooks: Hooks, loggers: Iterable[Any], name: str) -> Iterator[None]:
    """Measure the hooks of these objects, and with `phases` what is called around the trainer's methods."""
    from toolkit.telemetry.core.guard import Guard

    for one in loggers:
        hooks.watch(one)
    guarded = Guard.call
    if name == OURS_PHASES:
        hooks.watch(Guard, "call")
    try:
        yield
    finally:
        Guard.call = guarded  # type: ignore[method-assign]  # the next training is another's


def _end_wandb(name: str) -> None:
    """End the W&B run, which would otherwise continue during the next one."""
    if name == WANDB:
        import wandb

        wandb.finish()


FRAMEWORKS: Final = {
    "transformers": Framework("Hugging Face Trainer", "transformers", _train_with_transformers),
    "lightning": Framework("Lightning", "lightning", _train_with_lightning),
}


def _summary(took: dict[str, list[float]]) -> dict[str, float]:
    slowdowns = [own / none - 1 for own, none in zip(took["with"], took["without"], strict=True)]
    middle, low, high = median_and_quartiles(slowdowns)
    surely_above, surely_below = interval_of_median(slowdowns)
    return {
        "without_ms": statistics.median(took["without"]) * 1e3,
        "with_ms": statistics.median(took["with"]) * 1e3,
        "slowdown": middle,
        "slowdown_q1": low,
        "slowdown_q3": high,
        "once_ms": took["once"][0] * 1e3,
        "thread_us": statistics.median(took["in_hooks"]) * 1e6,
        "slowdown_low": surely_above,
        "slowdown_high": surely_below,
        "turns": len(slowdowns),
    }


def _claims(title: str, found: dict[str, dict[str, float]]) -> list[Claim]:
    claims = []
    if OURS_OFF in found:
        off = found[OURS_OFF]
        # Two medians are never equal: the question is whether the difference exceeds the noise.
        margin = (off["slowdown_high"] - off["slowdown_low"]) / 2
        claims.append(
            Claim(
                text=f"{title}: slowdown while switched off, against its margin",
                measured=round(off["slowdown"] * 100, 2),
                limit=round(margin * 100, 2),
                unit=" %",
                too_noisy=margin > _WIDEST_MARGIN or off["turns"] < _PAIRS,
            )
        )
    if OURS in found:
        text, measured = (
            f"{title}: time of the training's thread in a step",
            round(found[OURS]["thread_us"], 1),
        )
        claims.append(Claim(text=text, measured=measured, limit=_MOST_US, unit=" µs"))
    if OURS in found and WANDB in found:
        ours, theirs = found[OURS], found[WANDB]
        overlap = (
            ours["slowdown_low"] < theirs["slowdown_high"] and theirs["slowdown_low"] < ours["slowdown_high"]
        )
        claims.append(
            Claim(
                text=f"{title}: slowdown with ours, against W&B offline's",
                measured=round(ours["slowdown"] * 100, 2),
                limit=round(theirs["slowdown"] * 100, 2),
                unit=" %",
                too_noisy=overlap or ours["turns"] < _PAIRS,
            )
        )
    return claims


if __name__ == "__main__":
    run_alone(build)
