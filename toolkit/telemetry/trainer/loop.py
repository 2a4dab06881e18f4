"""The training: builds a job's parts, opens the logger, and runs step by step with what comes between the steps."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.trainer.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    TrainingState,
    read_checkpoint,
)
from toolkit.telemetry.trainer.model import (
    ARCHITECTURE,
    BASE_WEIGHTS,
    add_lora,
    choose_device,
    flow_loss,
    load_base,
    paint,
    random_times,
)
from toolkit.telemetry.trainer.options import PROCESS_KEY, JobOptions
from toolkit.telemetry.trainer.pictures import (
    IMAGE_SIZE,
    BatchOrder,
    derived_generator,
    derived_seed,
    draw_set,
)
from toolkit.telemetry.trainer.prompts import encode_prompt

EndReason = Literal["finished", "stopped", "interrupted", "signal"]

_VALIDATION_SEED = 1234
_PRINT_EVERY = 10
_WITHOUT_CAPTION = 0.05
"""Share of pictures that are shown without their caption, so that guidance has something to move away from."""

_SAMPLE_SIZE = 256
"""Width and height of a sample's PNG."""


def train(
    job: JobOptions, config: Mapping[str, Any], *, began: float, log_dir: str | None = None
) -> EndReason:
    """Train `job`, resuming where its options say so, and return why it ended.

    `config` is the whole file, which the logger records; the time of the run counts from `began`.

    Raises:
        OptionsError: the `telemetry:` block is wrong, or this machine or its files do not fit the options.
    """
    options = job.process
    try:
        device = choose_device(options.device)
    except ValueError as error:
        raise OptionsError(f"{PROCESS_KEY}.device: {error}") from error
    folder = Path(options.training_folder) / job.name
    checkpoints = CheckpointFolder(folder, job.name, keep=options.save.max_step_saves_to_keep)
    found = _checkpoint_to_resume(job, checkpoints)
    if found is not None and found.state.step >= options.train.steps:
        print(
            f"[run] {found.path} is at step {found.state.step} of {options.train.steps}: nothing left to train"
        )
        print("[run] raise train.steps to continue; set train.resume: never, or another name, to start over")
        return "finished"
    overrides: dict[str, Any] = {} if log_dir is None else {"log_dir": log_dir}
    if found is not None and found.state.run_id:
        overrides["run_id"] = found.state.run_id
    _be_deterministic()
    with TelemetryLogger.from_config(config, **overrides) as log:
        with log.training.application(start_time_msec=began * 1000), _stop_signals() as received:
            loop = TrainingLoop(job, config, checkpoints, found, device, log=log, received=received)
            reason = loop.run()
        log.close(reason=reason)
    print(f"[run] {reason} at step {loop.state.step}")
    if loop.last_checkpoint is not None:
        print(f"[run] checkpoint: {loop.last_checkpoint}")
    if log.run_folder is not None:
        print(f"[run] run folder: {os.path.relpath(log.run_folder)}")
    return reason


def _checkpoint_to_resume(job: JobOptions, checkpoints: CheckpointFolder) -> Checkpoint | None:
    wanted = job.process.train.resume
    try:
        if wanted in ("auto", "never"):
            found = checkpoints.latest() if wanted == "auto" else None
        else:
            found = read_checkpoint(Path(wanted))
    except CheckpointError as error:
        raise OptionsError(
            f"{PROCESS_KEY}.train.resume must be auto, never or a checkpoint, got {error}"
        ) from error
    rank = job.process.network.linear
    if found is not None and found.rank != rank:
        raise OptionsError(
            f"cannot resume from {found.path}: it has rank {found.rank}, and {PROCESS_KEY}.network.linear is {rank}. "
            f"Change it back, or set {PROCESS_KEY}.train.resume: never"
        )
    return found


class TrainingLoop:
    """Trains from a checkpoint, or from the base model, to the last step or until it is asked to stop."""

    def __init__(
        self,
        job: JobOptions,
        config: Mapping[str, Any],
        checkpoints: CheckpointFolder,
        found: Checkpoint | None,
        device: torch.device,
        *,
        log: TelemetryLogger,
        received: Sequence[signal.Signals],
    ) -> None:
        self._job, self._options, self._train = job, job.process, job.process.train
        self._checkpoints, self._device, self._log, self._received = checkpoints, device, log, received
        self.state = TrainingState() if found is None else found.state
        # A session without telemetry keeps the id for the next one with it.
        self.state.run_id = log.run_id or self.state.run_id
        self.last_checkpoint: Path | None = None
        self._val_loss: Tensor | None = None
        self._validated_at = self._saved_at = -1
        # A tensor on the device: the mean over an epoch is kept without waiting for a single step.
        self._epoch_loss_sum = torch.tensor(self.state.epoch_loss_sum, device=device)
        with log.training.model_init():
            self._model = load_base().to(device)
            generator = derived_generator(self._train.seed, "lora")
            self._lora = add_lora(self._model, self._options.network, generator)
        with log.training.optimizer_init():
            self._optimizer = torch.optim.AdamW(
                self._lora.values(), lr=self._train.lr, fused=device.type in ("cpu", "cuda")
            )
        if found is not None:
            with log.training.checkpoint_load():
                found.load(self._lora, self._optimizer)
            print(f"[run] resuming from {found.path} at step {self.state.step}")
        with log.training.dataloader_init():
            self._make_pictures()
        self._announce(config)
        self._put_state("start" if found is None else "load", None if found is None else found.path)

    def run(self) -> EndReason:
        """Train, and return why it ended; every way but `stop` leaves a checkpoint of the last step."""
        with self._log.training.training_loop(
            train_iterations_start=self.state.step, train_iterations_target=self._train.steps
        ):
            if self.state.step == 0:
                self._validate()
                self._sample()
            while self.state.step < self._train.steps:
                self.state.step += 1
                with self._log.training.training_iteration():
                    self._train_step()
                last = self.state.step == self._train.steps
                if last or self._due(self._train.validation_config.validate_every):
                    self._validate()
                self._end_epoch_if_due()
                if last or self._due(self._options.save.save_every):
                    self._save(final=last)
                if last or self._due(self._options.sample.sample_every):
                    self._sample()
                asked = None if last else self._asked_to_end()
                if asked is not None:
                    return asked
        return "finished"

    def _due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _make_pictures(self) -> None:
        """Draw what is trained on and validated with."""
        style, checked = self._options.dataset.style, self._train.validation_config
        draw = partial(draw_set, style, triggered=self._options.trigger_word is not None, device=self._device)
        pictures = draw(self._options.dataset.num_images, "training")
        self._batches = BatchOrder(pictures, self._train.batch_size, seed=self._train.seed)
        # Always with the same noise and times, so that the losses of different steps compare.
        unseen = draw(checked.num_images, "validation")
        generator = derived_generator(_VALIDATION_SEED, "validation")
        noise = torch.randn(unseen.pictures.shape, generator=generator).to(self._device)
        times = random_times(checked.num_images, generator).to(self._device)
        self._unseen = unseen.pictures, noise, times, unseen.prompts

    def _announce(self, config: Mapping[str, Any]) -> None:
        """Write the start record, and declare what this loop can be asked for and how much work a step is."""
        options, train, log = self._options, self._train, self._log
        trainable = sum(matrix.numel() for matrix in self._lora.values())
        total = sum(parameter.numel() for parameter in self._model.parameters())
        self._about_lora = {
            "rank": options.network.linear,
            "alpha": options.network.linear_alpha,
            "dropout": options.network.dropout,
            "target_modules": sorted({name.split(".lora_")[0] for name in self._lora}),
        }
        model = {"name": BASE_WEIGHTS.stem, "architecture": ARCHITECTURE}
        log.log_start(
            config=config,
            lora=self._about_lora,
            model={**model, "total_params": total, "trainable_params": trainable},
            training={
                "optimizer": "adamw",
                "dtype": "float32",
                "device": str(self._device),
                "batches_per_epoch": self._batches.batches_per_epoch,
                "resumed_from_step": self.state.step,
            },
        )
        for action in ("save", "sample", "stop", "save_and_stop"):
            log.declare_action(action)
        log.declare_knob("lr_scale", float, low=0.1, high=2.0)
        tokens = self._model.tokens_per_picture
        log.training.configure(
            global_batch_size=train.batch_size,
            seq_length=tokens,
            # Two operations per parameter and token in the forward pass and two in the backward pass: the base is
            # frozen, so only gradients of activations are computed.
            flops_per_sample=4 * total * tokens,
            train_iterations_target=train.steps,
        )
        print(
            f"[run] {self._job.name}: LoRA of rank {options.network.linear} on {len(self._lora) // 2} layers, "
            f"{trainable:,} of {total:,} parameters, on {self._device}"
        )

    def _train_step(self) -> None:
        """One optimizer step; the loss stays on the device."""
        train, step, phases = self._train, self.state.step, self._log.training
        lr = self.state.lr_scale * learning_rate(
            step, lr=train.lr, kind=train.lr_scheduler, warmup=train.warmup, steps=train.steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(derived_seed(train.seed, "dropout", step))
        generator = derived_generator(train.seed, "noise", step, self._device)
        self._model.train()
        with phases.data_loading():
            pictures, prompts = self._batches.batch(step - 1)
        with phases.forward():
            noise = torch.randn(pictures.shape, generator=generator, device=self._device)
            times = random_times(len(pictures), generator)
            kept = torch.rand(len(prompts), 1, generator=generator, device=self._device) >= _WITHOUT_CAPTION
            loss = flow_loss(self._model, pictures, noise, times, prompts * kept)
        with phases.backward():
            loss.backward()
        with phases.optimizer_update():
            grad_norm = torch.nn.utils.clip_grad_norm_(self._lora.values(), train.max_grad_norm)
            self._optimizer.step()
        with phases.zero_grad():
            self._optimizer.zero_grad()
        loss = loss.detach()
        self._epoch_loss_sum += loss
        self.state.epoch_steps += 1
        epoch = (step - 1) // self._batches.batches_per_epoch + 1
        self._log.log_step(step, train_loss=loss, lr=lr, grad_norm=grad_norm, epoch=epoch)
        if step in (1, train.steps) or step % _PRINT_EVERY == 0:
            # Only here the loss is read from the device.
            done = f"step {step}/{train.steps} ({step / train.steps:.0%})"
            print(f"[run] {done}  loss {loss.item():.4f}  lr {lr:.1e}", flush=True)

    def _end_epoch_if_due(self) -> None:
        if not self._due(self._batches.batches_per_epoch):
            return
        self._validate()
        metrics = {"train_loss_mean": self._epoch_loss_sum / self.state.epoch_steps}
        if self._val_loss is not None:
            metrics["val_loss"] = self._val_loss
        epoch = self.state.step // self._batches.batches_per_epoch
        self._log.log_epoch(epoch, metrics, global_step=self.state.step)
        self._epoch_loss_sum = torch.zeros_like(self._epoch_loss_sum)
        self.state.epoch_steps = 0

    @torch.no_grad()
    def _validate(self) -> None:
        """Log the mean loss over the pictures that are never trained on, once per step."""
        if not self._train.validation_config.validate_every or self._validated_at == self.state.step:
            return
        with self._log.training.validation_loop(), self._log.training.validation_iteration():
            self._model.eval()
            self._val_loss = flow_loss(self._model, *self._unseen)
        self._validated_at = self.state.step
        self._log.log_eval(self.state.step, val_loss=self._val_loss)

    def _sample(self) -> None:
        """Paint the prompts, from the same noise each time so that pictures of different steps compare."""
        sample, trigger = self._options.sample, self._options.trigger_word
        if not sample.prompts or not sample.sample_every:
            return
        with self._log.training.sampling():
            self._model.eval()
            noise = [
                torch.randn(
                    3, IMAGE_SIZE, IMAGE_SIZE, generator=derived_generator(sample.seed + place, "sample")
                )
                for place in range(len(sample.prompts))
            ]
            pictures = paint(
                self._model,
                torch.stack(noise).to(self._device),
                torch.tensor([encode_prompt(prompt, trigger) for prompt in sample.prompts]).to(self._device),
                steps=sample.sample_steps,
                guidance_scale=sample.guidance_scale,
            )
            size = _SAMPLE_SIZE // IMAGE_SIZE
            pixels = ((pictures + 1) * 127.5).round().byte().permute(0, 2, 3, 1)
            pixels = pixels.repeat_interleave(size, dim=1).repeat_interleave(size, dim=2).cpu()
            for prompt, picture in zip(sample.prompts, pixels.numpy(), strict=True):
                self._log.log_image(prompt.replace("[trigger]", trigger or ""), picture, step=self.state.step)

    def _save(self, *, final: bool = False) -> None:
        """Write a checkpoint, judged by its own validation loss; the same step is not written twice."""
        state = self.state
        if self._saved_at == state.step:
            return
        self._saved_at = state.step
        self._validate()
        is_best = False
        if self._val_loss is not None:
            val_loss = self._val_loss.item()
            # Not a number is never the best, nor worse than what comes after it.
            is_best = math.isfinite(val_loss) and val_loss < (state.best_val_loss or math.inf)
            if is_best:
                state.best_val_loss = val_loss
        state.epoch_loss_sum = self._epoch_loss_sum.item()
        began = time.monotonic()
        path = self._checkpoints.path_of(state.step, final=final)
        with self._log.training.checkpoint_save(state.step, path=path):
            self._checkpoints.save(path, self._lora, self._optimizer, state, self._about_lora)
        self.last_checkpoint = path
        self._log.log_checkpoint(state.step, path, is_best=is_best, seconds=time.monotonic() - began)
        self._put_state("save", path)

    def _put_state(self, at: Literal["save", "load", "start"], checkpoint: Path | None) -> None:
        """Record what a checkpoint holds; the next step seeds its generators and sets its rate by itself."""
        # What is drawn until then is not part of the training: recorded, it would look as if a resume had lost it.
        torch.manual_seed(derived_seed(self._train.seed, "dropout", self.state.step))
        self._log.state(
            at,
            self.state.step,
            checkpoint=checkpoint,
            optimizer=self._optimizer,
            epoch=self.state.step // self._batches.batches_per_epoch,
            data_position=self.state.step % self._batches.batches_per_epoch,
            batch_size=self._train.batch_size,
        )

    def _asked_to_end(self) -> EndReason | None:
        """Do what was asked for since the last step; return a reason if that was to end."""
        for request in self._log.take_requests():
            if request.name == "lr_scale" and isinstance(request.value, (int, float)):
                self.state.lr_scale = float(request.value)
            elif request.name == "sample":
                self._sample()
            elif request.name in ("save", "save_and_stop"):
                self._save()
        if self._received:
            self._save()
            return "interrupted" if self._received[0] is signal.SIGINT else "signal"
        return "stopped" if self._log.should_stop else None


def learning_rate(step: int, *, lr: float, kind: str, warmup: int, steps: int) -> float:
    """Return the rate for `step`, which counts from 1 to `steps`.

    It rises to `lr` in the first `warmup` steps; then it stays (`constant`) or falls in half a wave to nearly
    nothing at the last step (`cosine`).
    """
    if step <= warmup:
        return lr * step / warmup
    if kind == "constant":
        return lr
    return lr * (0.5 + 0.5 * math.cos(math.pi * (step - warmup - 1) / max(1, steps - warmup)))


@contextmanager
def _stop_signals() -> Iterator[list[signal.Signals]]:
    """Yield a list that gets the first Ctrl-C or SIGTERM; a second one does what it would have done without us."""
    received: list[signal.Signals] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        restore()
        # print() may be in the middle of a line when the signal comes.
        os.write(2, f"\n[run] {received[0].name}: saving after this step; once more ends at once\n".encode())

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        restore()


def _be_deterministic() -> None:
    """Make torch compute the same bits each time, on any number of cores."""
    # cuBLAS reads this when it is first used, and refuses to be deterministic without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Sums differ when they are split. At this size several threads gain little on an idle machine, and on a busy one
    # they wait for each other: on two shared cores one thread is four times as fast as two.
    torch.set_num_threads(1)
    # On Arm, oneDNN uses its own threads regardless of torch's setting, and is four times slower on thin matrices.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property, though not typed as one
