"""The same small training by each framework that has a callback of ours: what it was, as the framework itself says."""

# Facts of a framework are class attributes, which nothing changes.
# ruff: noqa: RUF012

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from typing import Any

from toolkit.telemetry.integrations.method_patches import _PatchedMethod

os.environ.setdefault("KERAS_BACKEND", "torch")

STEPS = 4
"""Of two samples each, in two epochs; a checkpoint and an evaluation after every second step.

One that is not `busy` has a single epoch, and does nothing else before its end.
"""
RATE = 0.125


@dataclass
class Training:
    """What a framework says of a training."""

    losses: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    patched: set[str] = field(default_factory=set)
    """Methods that were attributes of the framework's objects during a step."""
    left: set[str] = field(default_factory=set)
    """Those that still are after the training."""


def patched_of(*owners: Any) -> set[str]:
    """Return the names of the methods of these objects that are patched."""
    return {name for one in owners for name, value in vars(one).items() if isinstance(value, _PatchedMethod)}


def _data(steps, busy):
    import torch

    torch.manual_seed(0)
    return torch.randn(4 if busy else 2 * steps, 3)


class Transformers:
    """Hugging Face's Trainer."""

    module = "toolkit.telemetry.integrations.transformers"
    name = "TelemetryCallback"
    log = "log"
    checkpoint = "out/checkpoint-{}"
    start = {
        "batch_size": 2,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "optimizer": "sgd",
        "model_total_params": 4,
    }
    spans = {
        "application": 1,
        "training_loop": 1,
        "training_iteration": 4,
        "validation_loop": 2,
        "checkpoint_save_sync": 2,
    }
    parts = {
        "data_loading": 4,
        "forward": 4,
        "backward": 4,
        "optimizer_update": 4,
        "validation_iteration": 4,
    }
    wrapped = {"training_step", "compute_loss", "backward", "_run_epoch", "_save_checkpoint"}
    calls = ("__init__", "declare_action", "log_start", "log_step", "log_eval", "log_checkpoint", "log_epoch")
    reports_failures = False
    """Whether its public hooks report a failure when it happens."""

    def train(self, folder, callback=None, *, steps=STEPS, at_step=None, resume=None, busy=True):
        import torch
        import transformers

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 1)

            def forward(self, x):
                return {"loss": (self.layer(x) ** 2).mean()}

        class Own(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                own.patched |= patched_of(trainer, trainer.accelerator, trainer.callback_handler)
                if at_step is not None:
                    at_step(state.global_step + 1)

        own, data, often = Training(), _data(steps, busy), 2 if busy else 1000
        arguments = transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=2,
            max_steps=steps,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            optim="sgd",
            logging_steps=1 if busy else often,
            save_steps=often,
            eval_strategy="steps",
            eval_steps=often,
            per_device_eval_batch_size=2,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
            dataloader_pin_memory=False,
        )
        rows = [{"x": row} for row in data]
        callbacks = [Own(), *([callback] if callback is not None else [])]
        trainer = transformers.Trainer(
            Model(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks
        )
        try:
            trainer.train(resume_from_checkpoint=resume)
        finally:
            own.left = patched_of(trainer, trainer.accelerator, trainer.callback_handler)
        own.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        own.weights = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).tolist()
        return own


class Lightning:
    """Lightning's Trainer."""

    module = "toolkit.telemetry.integrations.lightning"
    name = "TelemetryCallback"
    log = "telemetry"
    checkpoint = "kept/step={}.ckpt"
    start = {
        "batch_size": 2,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "optimizer": "SGD",
        "model_total_params": 4,
    }
    spans = {
        "application": 1,
        "model_init": 1,
        "dataloader_init": 1,
        "training_loop": 1,
        "training_iteration": 4,
        "validation_loop": 2,
        "validation_iteration": 4,
        "checkpoint_save_sync": 2,
    }
    parts = {"data_loading": 4, "forward": 4, "zero_grad": 4, "backward": 4, "optimizer_update": 4}
    wrapped = {"start", "stop"}
    calls = ("__init__", "log_start", "log_step", "log_eval", "log_checkpoint", "log_epoch", "start_span")
    reports_failures = True

    def train(self, folder, callback=None, *, steps=STEPS, at_step=None, resume=None, busy=True):
        import lightning.pytorch as L
        import torch

        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 1)

            def training_step(self, batch, _):
                loop = self.trainer.fit_loop
                own.patched |= patched_of(self.trainer, loop, loop.epoch_loop, self, self.trainer.profiler)
                if at_step is not None:
                    at_step(self.global_step + 1)
                loss = (self.layer(batch) ** 2).mean()
                own.losses.append(loss.item())
                return loss

            def validation_step(self, batch, _):
                self.log("val_loss", (self.layer(batch) ** 2).mean())

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=RATE)

        own, data, often = Training(), _data(steps, busy), 2 if busy else 1000
        saves = L.callbacks.ModelCheckpoint(
            folder / "kept", "{step}", save_top_k=-1, every_n_train_steps=often
        )
        model, ranks = Model(), int(os.environ.get("WORLD_SIZE", "1"))
        trainer = L.Trainer(
            max_epochs=steps // 2 if busy else 1,
            accelerator="cpu",
            devices=ranks,
            strategy="auto" if ranks == 1 else "ddp",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[saves, *([callback] if callback is not None else [])],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader, other = (torch.utils.data.DataLoader(data, batch_size=2) for _ in range(2))
            try:
                trainer.fit(model, loader, other, ckpt_path=resume)
            finally:
                own.left = patched_of(trainer, trainer.fit_loop, model, trainer.profiler)
        own.weights = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
        return own


class Accelerate:
    """A loop with Accelerate, whose tracker watches the accelerator."""

    module = "toolkit.telemetry.integrations.accelerate"
    name = "TelemetryTracker"
    log = "tracker"
    checkpoint = "kept/step-{}"
    start = {"batch_size": 2, "learning_rate": RATE, "world_size": 1}
    spans = {"application": 1, "training_loop": 1, "checkpoint_save_sync": 2}
    parts = None
    wrapped = set()
    calls = ("__init__", "declare_action", "log_start", "log_step", "log_eval", "log_checkpoint", "state")
    reports_failures = True

    def train(self, folder, callback=None, *, steps=STEPS, at_step=None, resume=None, busy=True):
        import accelerate
        import torch

        for state in ("AcceleratorState", "GradientState", "PartialState"):
            getattr(accelerate.state, state)._reset_state()
        own, data = Training(), _data(steps, busy)
        accelerator = accelerate.Accelerator(cpu=True, log_with=None if callback is None else [callback])
        model = torch.nn.Linear(3, 1)
        model, optimizer, loader = accelerator.prepare(
            model,
            torch.optim.SGD(model.parameters(), lr=RATE),
            torch.utils.data.DataLoader(data, batch_size=2),
        )
        if callback is not None:
            callback.watch(accelerator, save_to=folder / "kept")
        accelerator.init_trackers("project", config={"lr": RATE, "batch_size": 2})
        if resume is not None:
            accelerator.load_state(str(resume))
        step = 0 if resume is None else int(str(resume).rpartition("-")[2])
        try:
            while step < steps:
                for batch in loader:
                    step += 1
                    own.patched |= patched_of(accelerator)
                    with accelerator.accumulate(model):
                        if at_step is not None:
                            at_step(step)
                        loss = (model(batch) ** 2).mean()
                        accelerator.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
                    own.losses.append(loss.item())
                    accelerator.log({"loss": loss.detach(), "lr": RATE}, step=step)
                    if busy and step % 2 == 0:
                        accelerator.save_state(str(folder / f"kept/step-{step}"))
                        accelerator.log({"eval_loss": 0.5}, step=step)
                    if callback is not None and callback.should_stop:
                        step = steps
                        break
        finally:
            accelerator.end_training()
            own.left = patched_of(accelerator)
        own.weights = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
        return own


class Keras:
    """Keras on torch, which does not say what it resumes."""

    module = "toolkit.telemetry.integrations.keras"
    name = "TelemetryCallback"
    log = "log"
    checkpoint = None
    start = {
        "max_steps": STEPS,
        "learning_rate": RATE,
        "optimizer": "SGD",
        "model_total_params": 4,
    }
    spans = {}
    parts = None
    wrapped = {"train_function", "save", "save_weights"}
    calls = ("__init__", "declare_action", "log_start", "log_step", "log_eval", "log_checkpoint", "log_epoch")
    reports_failures = False

    def train(self, folder, callback=None, *, steps=STEPS, at_step=None, resume=None, busy=True):
        import keras

        class Own(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                own.patched |= patched_of(self.model)
                if at_step is not None:
                    at_step(len(own.losses) + 1)

            def on_train_batch_end(self, batch, logs=None):
                own.losses.append(logs["loss"])

        own, data = Training(), _data(steps, busy).numpy()
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="r")
        model.compile(keras.optimizers.SGD(RATE), "mse")
        save = keras.callbacks.ModelCheckpoint(str(folder / "of-{epoch}.keras"))
        callbacks = [save, Own(), *([callback] if callback is not None else [])]
        fit = {"epochs": steps // 2 if busy else 1, "batch_size": 2, "verbose": 0, "shuffle": False}
        try:
            model.fit(data, data.sum(1), validation_data=(data, data.sum(1)), callbacks=callbacks, **fit)
        finally:
            own.left = patched_of(model)
        own.weights = [float(value) for part in model.get_weights() for value in part.ravel()]
        return own


FRAMEWORKS = {
    "transformers": Transformers(),
    "lightning": Lightning(),
    "accelerate": Accelerate(),
    "keras": Keras(),
}
