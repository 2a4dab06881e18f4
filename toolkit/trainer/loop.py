"""The training loop: steps, validation, samples, checkpoints, and requests in between."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from toolkit.telemetry import TelemetryLogger
from toolkit.trainer.checkpoint import CheckpointFolder, TrainingState
from toolkit.trainer.config import ProcessOptions
from toolkit.trainer.dataset import BatchOrder, PictureSet
from toolkit.trainer.flow import flow_loss, random_times
from toolkit.trainer.lora import Lora
from toolkit.trainer.model import TinyDiT
from toolkit.trainer.progress import Progress
from toolkit.trainer.samples import Sampler
from toolkit.trainer.schedule import learning_rate
from toolkit.trainer.seeds import derived_generator, derived_seed
from toolkit.trainer.stop_signals import StopSignals
from toolkit.trainer.validation import Validation

EndReason = Literal["finished", "stopped", "interrupted", "signal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a loop works with."""

    model: TinyDiT
    lora: Lora
    optimizer: torch.optim.Optimizer
    batches: BatchOrder
    validation: Validation | None
    sampler: Sampler | None
    samples_folder: Path
    checkpoints: CheckpointFolder
    about_lora: Mapping[str, object]
    device: torch.device


class TrainingLoop:
    """Trains from `state` to the last step, or until it is asked to stop."""

    def __init__(
        self,
        options: ProcessOptions,
        parts: Parts,
        state: TrainingState,
        *,
        log: TelemetryLogger,
        progress: Progress,
        signals: StopSignals,
    ) -> None:
        self._train = options.train
        self._options = options
        self._parts = parts
        self._log = log
        self._time = log.training
        self._progress = progress
        self._signals = signals
        self.step = state.step
        self.last_checkpoint: Path | None = None
        # A session without telemetry keeps the id for the next one with it.
        self._run_id = log.run_id or state.run_id
        self._lr_scale = state.lr_scale
        self._best_val_loss = state.best_val_loss
        self._val_loss: Tensor | None = None
        self._validated_at = -1
        self._saved_at = -1
        # A tensor on the device: the mean over an epoch is kept without waiting for a single step.
        self._epoch_loss_sum = torch.tensor(state.epoch_loss_sum, device=parts.device)
        self._epoch_steps = state.epoch_steps

    def run(self) -> EndReason:
        """Train, and return why it ended; every way but `stop` leaves a checkpoint of the last step."""
        with self._time.training_loop(
            train_iterations_start=self.step, train_iterations_target=self._train.steps
        ):
            return self._run()

    def _run(self) -> EndReason:
        if self.step == 0:
            self._validate()
            if not self._train.skip_first_sample:
                self._sample()
        while self.step < self._train.steps:
            self.step += 1
            with self._time.training_iteration():
                self._train_step()
            last = self.step == self._train.steps
            if last or _due(self.step, self._train.validation_config.validate_every):
                self._validate()
            self._end_epoch_if_due()
            if last or _due(self.step, self._options.save.save_every):
                self._save(final=last)
            if last or _due(self.step, self._options.sample.sample_every):
                self._sample()
            asked = None if last else self._asked_to_end()
            if asked is not None:
                return asked
        return "finished"

    def _train_step(self) -> None:
        """One optimizer step over `gradient_accumulation` batches; the loss stays on the device."""
        train, parts = self._train, self._parts
        lr = self._lr_scale * learning_rate(
            self.step, lr=train.lr, kind=train.lr_scheduler, warmup=train.warmup, steps=train.steps
        )
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(derived_seed(train.seed, "dropout", self.step))
        generator = derived_generator(train.seed, "noise", self.step, parts.device)
        parts.model.train()
        loss = torch.zeros((), device=parts.device)
        for part in range(train.gradient_accumulation):
            with self._time.data_loading():
                batch = parts.batches.batch((self.step - 1) * train.gradient_accumulation + part)
            with self._time.forward():
                share = self._batch_loss(batch, generator) / train.gradient_accumulation
            with self._time.backward():
                share.backward()
            loss += share.detach()
        with self._time.optimizer_update():
            grad_norm = torch.nn.utils.clip_grad_norm_(parts.lora.parameters(), train.max_grad_norm)
            parts.optimizer.step()
        with self._time.zero_grad():
            parts.optimizer.zero_grad()
        self._epoch_loss_sum += loss
        self._epoch_steps += 1
        self._log.log_step(self.step, train_loss=loss, lr=lr, grad_norm=grad_norm, epoch=self._epoch())
        self._progress.step_done(self.step, loss, lr)

    def _batch_loss(self, batch: PictureSet, generator: torch.Generator) -> Tensor:
        device = batch.pictures.device
        noise = torch.randn(batch.pictures.shape, generator=generator, device=device)
        times = random_times(len(batch), self._train.timestep_type, generator)
        kept = torch.rand(len(batch), 1, generator=generator, device=device) >= batch.caption_dropout
        with torch.autocast(device.type, torch.bfloat16, enabled=self._train.dtype == "bf16"):
            return flow_loss(self._parts.model, batch.pictures, noise, times, batch.prompts * kept)

    def _end_epoch_if_due(self) -> None:
        ended = self._epochs_ended(self.step)
        if ended == self._epochs_ended(self.step - 1):
            return
        self._validate()
        metrics = {"train_loss_mean": self._epoch_loss_sum / self._epoch_steps}
        if self._val_loss is not None:
            metrics["val_loss"] = self._val_loss
        self._log.log_epoch(ended, metrics, global_step=self.step)
        self._epoch_loss_sum = torch.zeros_like(self._epoch_loss_sum)
        self._epoch_steps = 0

    def _epochs_ended(self, step: int) -> int:
        return step * self._train.gradient_accumulation // self._parts.batches.batches_per_epoch

    def _epoch(self) -> int:
        """The epoch, counted from 1, that the last batch of this step belongs to."""
        batches = max(0, self.step * self._train.gradient_accumulation - 1)
        return batches // self._parts.batches.batches_per_epoch + 1

    def _validate(self) -> None:
        if self._parts.validation is None or self._validated_at == self.step:
            return
        with self._time.validation_loop():
            self._val_loss = self._parts.validation.loss(
                self._parts.model, around_each=self._time.validation_iteration
            )
        self._validated_at = self.step
        self._log.log_eval(self.step, val_loss=self._val_loss)

    def _sample(self) -> None:
        sampler = self._parts.sampler
        if sampler is None:
            return
        with self._time.sampling():
            self._parts.model.eval()
            pictures = sampler.paint(self._parts.model)
            try:
                for prompt, path in sampler.write(pictures, self._parts.samples_folder, self.step):
                    self._log.log_sample(self.step, path, prompt=prompt)
            except OSError as error:
                # A picture is there to look at; the training is worth more than it.
                self._progress.say(f"[run] the samples of step {self.step} could not be written: {error}")

    def _save(self, *, final: bool = False) -> None:
        """Write a checkpoint, judged by its own validation loss; the same step is not written twice."""
        if self._saved_at == self.step:
            return
        self._saved_at = self.step
        self._validate()
        is_best = False
        if self._val_loss is not None:
            val_loss = self._val_loss.item()
            # Not a number is never the best, nor worse than what comes after it.
            is_best = math.isfinite(val_loss) and val_loss < (self._best_val_loss or math.inf)
            if is_best:
                self._best_val_loss = val_loss
        parts, state = self._parts, self._state()
        began = time.monotonic()
        path = parts.checkpoints.path_of(self.step, final=final)
        with self._time.checkpoint_save(self.step, path=path):
            parts.checkpoints.save(parts.lora, parts.optimizer, state, about=parts.about_lora, final=final)
        self.last_checkpoint = path
        self._log.log_checkpoint(self.step, path, is_best=is_best, seconds=time.monotonic() - began)

    def _state(self) -> TrainingState:
        return TrainingState(
            step=self.step,
            epoch=self._epoch(),
            run_id=self._run_id,
            lr_scale=self._lr_scale,
            best_val_loss=self._best_val_loss,
            epoch_loss_sum=self._epoch_loss_sum.item(),
            epoch_steps=self._epoch_steps,
        )

    def _asked_to_end(self) -> EndReason | None:
        """Do what was asked for since the last step; return a reason where that was to end."""
        for request in self._log.take_requests():
            if request.name == "lr_scale" and isinstance(request.value, (int, float)):
                self._lr_scale = float(request.value)
            elif request.name == "sample":
                self._sample()
            elif request.name in ("save", "save_and_stop"):
                self._save()
        if self._signals.received is not None:
            self._save()
            return "interrupted" if self._signals.received is signal.SIGINT else "signal"
        return "stopped" if self._log.should_stop else None


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
