"""The training: builds a job's parts, opens the logger, and runs step by step with what comes between the steps."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.trainer.checkpoint import TrainingState, read_checkpoint, save_checkpoint
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
from toolkit.telemetry.trainer.options import PROCESS_KEY, JobOptions, TrainOptions
from toolkit.telemetry.trainer.pictures import IMAGE_SIZE, batch_of, generator_of, neon_signs
from toolkit.telemetry.trainer.prompts import encode_prompt

_UNSEEN = 32
"""Pictures to validate with."""
_VALIDATION_SEED = 1234
_PRINT_EVERY = 10
_MAX_GRAD_NORM = 1.0
_WITHOUT_CAPTION = 0.05
"""Share of pictures that are shown without their caption, so that guidance has something to move away from."""
_SAMPLE_STEPS = 20
_ENLARGED = 8
"""How much larger than the model's pictures the PNG files of samples are."""


def train(job: JobOptions, config: Mapping[str, Any], *, began: float, log_dir: str | None = None) -> str:
    """Train `job`, resuming from its newest checkpoint, and return why it ended.

    `config` is the whole file, which the logger records; the time of the run counts from `began`.

    Raises:
        OptionsError: the `telemetry:` block is wrong, or this machine or its files do not fit the options.
    """
    steps, rank = job.process.train.steps, job.process.network.linear
    folder = Path(job.process.training_folder) / job.name
    checkpoint = max(folder.glob("*.pt"), key=lambda path: path.stat().st_mtime_ns, default=None)
    state, saved = TrainingState(rank=rank), None
    try:
        device = choose_device(job.process.device)
        if checkpoint is not None:
            state, saved = read_checkpoint(checkpoint)
    except ValueError as error:
        raise OptionsError(str(error)) from error
    if state.rank != rank:
        raise OptionsError(
            f"cannot resume from {checkpoint}: it has rank {state.rank}, and {PROCESS_KEY}.network.linear is {rank}; "
            "change it back, or train under another name"
        )
    if state.step >= steps:
        print(f"[run] {checkpoint} is at step {state.step} of {steps}: nothing left to train")
        print("[run] raise train.steps to continue; give another name to start over")
        return "finished"
    overrides: dict[str, Any] = {"log_dir": log_dir, "run_id": state.run_id}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    _be_deterministic()
    with TelemetryLogger.from_config(config, **overrides) as log:
        with log.training.application(start_time_msec=began * 1000), _stop_signals() as received:
            loop = TrainingLoop(job, log, device, state)
            if saved is not None:
                loop.load(saved)
                print(f"[run] resuming from {checkpoint} at step {state.step}")
            loop.describe(config)
            reason = loop.run(received)
        log.close(reason=reason)
    print(f"[run] {reason} at step {state.step}")
    if loop.checkpoint is not None:
        print(f"[run] checkpoint: {loop.checkpoint}")
    if log.run_folder is not None:
        print(f"[run] run folder: {os.path.relpath(log.run_folder)}")
    return reason


class TrainingLoop:
    """Trains from a checkpoint, or from the base model, to the last step or until it is asked to stop."""

    def __init__(
        self, job: JobOptions, log: TelemetryLogger, device: torch.device, state: TrainingState
    ) -> None:
        options, train = job.process, job.process.train
        self._job, self._options, self._train, self._log, self._device = job, options, train, log, device
        self.state = state
        self.checkpoint: Path | None = None
        """The one that was saved last."""
        # A session without telemetry keeps the id for the next one with it.
        state.run_id = log.run_id or state.run_id
        with log.training.model_init():
            self._model = load_base().to(device)
            self._lora = add_lora(self._model, options.network, generator_of(train.seed, "lora"))
        with log.training.optimizer_init():
            fused = device.type in ("cpu", "cuda")
            self._optimizer = torch.optim.AdamW(self._lora.values(), lr=train.lr, fused=fused)
        with log.training.dataloader_init():
            self._pictures = neon_signs(train.num_images, "training", device)
            # Always with the same noise and times, so that the losses of different steps compare.
            unseen = neon_signs(_UNSEEN, "validation", device)
            generator = generator_of(_VALIDATION_SEED, "validation")
            noise = torch.randn(unseen.pictures.shape, generator=generator).to(device)
            times = random_times(len(noise), generator).to(device)
            self._unseen = unseen.pictures, noise, times, unseen.prompts
        self._steps_per_epoch = train.num_images // train.batch_size

    def load(self, saved: Mapping[str, Any]) -> None:
        """Put the weights of a checkpoint into the LoRA, and their state into the optimizer."""
        with self._log.training.checkpoint_load(), torch.no_grad():
            for name, matrix in self._lora.items():
                matrix.copy_(saved["lora"][name])
            self._optimizer.load_state_dict(saved["optimizer"])

    def describe(self, config: Mapping[str, Any]) -> None:
        """Write the start record, and declare what this loop can be asked for and how much work a step is."""
        network, log, tokens = self._options.network, self._log, self._model.tokens_per_picture
        trainable = sum(matrix.numel() for matrix in self._lora.values())
        total = sum(parameter.numel() for parameter in self._model.parameters())
        names = sorted({name.split(".lora_")[0] for name in self._lora})
        about = {"total_params": total, "trainable_params": trainable}
        log.log_start(
            config=config,
            lora={"rank": network.linear, "alpha": network.linear_alpha, "target_modules": names},
            model={"name": BASE_WEIGHTS.stem, "architecture": ARCHITECTURE, **about},
            training={
                "optimizer": "adamw",
                "dtype": "float32",
                "device": str(self._device),
                "batches_per_epoch": self._steps_per_epoch,
                "resumed_from_step": self.state.step,
            },
        )
        for action in ("save", "sample", "stop", "save_and_stop"):
            log.declare_action(action)
        log.declare_knob("lr_scale", float, low=0.1, high=2.0)
        log.training.configure(
            global_batch_size=self._train.batch_size,
            seq_length=tokens,
            # Two operations per parameter and token in the forward pass and two in the backward pass: the base is
            # frozen, so only gradients of activations are computed.
            flops_per_sample=4 * total * tokens,
            train_iterations_target=self._train.steps,
        )
        print(f"[run] {self._job.name}: {trainable:,} of {total:,} parameters, on {self._device}")

    def run(self, received: Sequence[signal.Signals]) -> str:
        """Train, and return why it ended; every way but `stop` leaves a checkpoint of the last step."""
        state, train = self.state, self._train
        with self._log.training.training_loop(state.step, train_iterations_target=train.steps):
            if state.step == 0:
                if train.validate_every:
                    self._validate()
                self._sample()
            while state.step < train.steps:
                state.step += 1
                with self._log.training.training_iteration():
                    self._step()
                if self._is_due(train.validate_every):
                    self._validate()
                if self._is_due(train.save_every):
                    self._save()
                if self._is_due(self._options.sample.sample_every):
                    self._sample()
                self._answer_requests()
                if received:
                    print(f"[run] {received[0].name}: saving after this step")
                    self._save()
                    return "interrupted" if received[0] is signal.SIGINT else "signal"
                if self._log.should_stop and state.step < train.steps:
                    return "stopped"
        return "finished"

    def _is_due(self, every: int) -> bool:
        return every > 0 and (self.state.step % every == 0 or self.state.step == self._train.steps)

    def _step(self) -> None:
        """One optimizer step; the loss stays on the device."""
        train, step, phases = self._train, self.state.step, self._log.training
        lr = self.state.lr_scale * learning_rate(step, train)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        generator = generator_of(train.seed, "noise", step, self._device)
        with phases.data_loading():
            pictures, prompts = batch_of(self._pictures, step - 1, train.batch_size, train.seed)
        with phases.forward():
            noise = torch.randn(pictures.shape, generator=generator, device=self._device)
            times = random_times(len(pictures), generator)
            kept = torch.rand(len(prompts), 1, generator=generator, device=self._device) >= _WITHOUT_CAPTION
            loss = flow_loss(self._model, pictures, noise, times, prompts * kept)
        with phases.backward():
            loss.backward()
        with phases.optimizer_update():
            grad_norm = torch.nn.utils.clip_grad_norm_(self._lora.values(), _MAX_GRAD_NORM)
            self._optimizer.step()
        with phases.zero_grad():
            self._optimizer.zero_grad()
        epoch = (step - 1) // self._steps_per_epoch + 1
        self._log.log_step(step, train_loss=loss.detach(), lr=lr, grad_norm=grad_norm, epoch=epoch)
        if step in (1, train.steps) or step % _PRINT_EVERY == 0:
            # Only here the loss is read from the device.
            done = f"step {step}/{train.steps} ({step / train.steps:.0%})"
            print(f"[run] {done}  loss {loss.item():.4f}  lr {lr:.1e}", flush=True)

    @torch.no_grad()
    def _validate(self) -> None:
        """Log the mean loss over the pictures that are never trained on."""
        with self._log.training.validation_loop(), self._log.training.validation_iteration():
            val_loss: Tensor = flow_loss(self._model, *self._unseen)
        self._log.log_eval(self.state.step, val_loss=val_loss)

    def _sample(self) -> None:
        """Paint the prompts, from the same noise each time so that pictures of different steps compare."""
        sample, trigger = self._options.sample, self._options.trigger_word
        if not sample.prompts or not sample.sample_every:
            return
        with self._log.training.sampling():
            shape = (len(sample.prompts), 3, IMAGE_SIZE, IMAGE_SIZE)
            noise = torch.randn(shape, generator=generator_of(self._train.seed, "sample")).to(self._device)
            prompts = torch.tensor([encode_prompt(prompt, trigger) for prompt in sample.prompts])
            pictures = paint(self._model, noise, prompts.to(self._device), steps=_SAMPLE_STEPS)
            for prompt, picture in zip(sample.prompts, pictures.cpu(), strict=True):
                shown = F.interpolate(picture[None] / 2 + 0.5, scale_factor=_ENLARGED)[0]
                self._log.log_image(prompt.replace("[trigger]", trigger or ""), shown, step=self.state.step)

    def _save(self) -> None:
        """Write a checkpoint, once per step."""
        step, name = self.state.step, self._job.name
        own = name if step == self._train.steps else f"{name}_{step:09d}"
        path = Path(self._options.training_folder) / name / f"{own}.pt"
        if path != self.checkpoint:
            self.checkpoint, began = path, time.monotonic()
            with self._log.training.checkpoint_save(step, path=path):
                save_checkpoint(path, self._lora, self._optimizer, self.state)
            self._log.log_checkpoint(step, path, seconds=time.monotonic() - began)

    def _answer_requests(self) -> None:
        for request in self._log.take_requests():
            if request.name == "lr_scale" and isinstance(request.value, (int, float)):
                self.state.lr_scale = float(request.value)
            elif request.name == "sample":
                self._sample()
            elif request.name in ("save", "save_and_stop"):
                self._save()


def learning_rate(step: int, train: TrainOptions) -> float:
    """Return the rate for `step`, which counts from 1.

    It rises to `lr` in the first `warmup` steps; then it stays (`constant`) or falls in half a wave to nearly
    nothing at the last step (`cosine`).
    """
    if step <= train.warmup:
        return train.lr * step / train.warmup
    if train.lr_scheduler == "constant":
        return train.lr
    done = (step - train.warmup - 1) / max(1, train.steps - train.warmup)
    return train.lr * (0.5 + 0.5 * math.cos(math.pi * done))


@contextmanager
def _stop_signals() -> Iterator[list[signal.Signals]]:
    """Yield a list that gets the first Ctrl-C or SIGTERM; a second one does what it would have done without us."""
    received: list[signal.Signals] = []

    def note(number: int, _: object) -> None:
        received.append(signal.Signals(number))
        restore()

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
    # Sums differ when they are split, and at this size one thread is faster than two on a busy machine.
    torch.set_num_threads(1)
    # On Arm, oneDNN uses its own threads regardless of torch's setting.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property, though not typed as one
