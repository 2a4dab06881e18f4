"""The same training by Lightning, with a loader that saves its position and a callback that saves random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from evaluations.resume_scripts import task
from toolkit.telemetry.integrations.lightning import TelemetryCallback

settings, job, options = task.read_job()


class Module(pl.LightningModule):
    """The model, as Lightning wants it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = task.TinyModel(settings, job)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        logits = self.model(batch["input_ids"])["logits"]
        return task.loss_of(logits, batch["labels"], settings["label_smoothing"])

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the loss of the other rows."""
        self.log("val_loss", self.model(**batch)["loss"])

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and a schedule that takes a step with each of its steps."""
        optimizer, schedule = task.optimizer_for(self.model, settings)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ResumableLoader(DataLoader[Any]):
    """A loader whose position is in the checkpoint; with others, Lightning begins the epoch again."""

    position = first = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        first, self.first = self.first, 0
        self.sampler.skip = first * settings["batch_size"]  # type: ignore[attr-defined]
        for self.position, batch in enumerate(super().__iter__(), first + 1):
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of this epoch were used."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin the next pass after these batches."""
        self.first = state["position"]


class RandomNumbers(pl.Callback):
    """Saves the state of the random numbers, which Lightning does not, and restores it for the same seed."""

    loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the end of a step."""
        return {"seed": settings["seed"], "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state until the training starts."""
        self.loaded = state

    def on_train_start(self, *_: Any) -> None:
        """Restore the state."""
        if self.loaded and self.loaded["seed"] == settings["seed"]:
            torch.set_rng_state(self.loaded["rng"])


class Ending(pl.Callback):
    """Saves, and ends the training where the job says."""

    step = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Act once a step, however many batches it has."""
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        if self.step % settings["save_every"] == 0:
            trainer.save_checkpoint(f"saved/step={self.step}.ckpt")
        trainer.should_stop |= task.end_step(self.step, job)


class HalfGradients(MixedPrecision):
    """Loss scaling without autocast, which is slow on a CPU; the gradients alone are in half precision."""

    def autocast_context_manager(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Return a block that changes nothing."""
        return nullcontext()


trainer = pl.Trainer(
    max_steps=settings["max_steps"],
    accelerator="cpu",
    accumulate_grad_batches=settings["accumulation"],
    gradient_clip_val=settings["max_grad_norm"],
    val_check_interval=settings["eval_every"] * settings["accumulation"],
    check_val_every_n_epoch=None,
    num_sanity_val_steps=0,
    plugins=[HalfGradients("16-mixed", "cpu", task.scaler_for(settings))]
    if settings["loss_scaling"]
    else None,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[RandomNumbers(), TelemetryCallback(run_name="run", phases=True, **options), Ending()],
)
# With generators of their own, loaders take nothing from the random numbers of dropout.
rows = ResumableLoader(
    task.Windows(0, task.ROWS),
    settings["batch_size"],
    sampler=task.Order(settings["data_seed"]),
    generator=torch.Generator(),
)
evaluation = DataLoader(task.Windows(task.ROWS, task.EVALUATED), task.EVALUATED, generator=torch.Generator())
trainer.fit(Module(**settings), rows, evaluation, ckpt_path=job["resume_from"])
