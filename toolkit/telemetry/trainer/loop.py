"""The training: builds a job's parts, opens the logger, and runs step by step with what comes between the steps."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.core.clock import wall_time_of
from toolkit.telemetry.timing.names import CHECKPOINT_LOAD, MODEL_INIT, OPTIMIZER_INIT
from toolkit.telemetry.trainer import checkpoint
from toolkit.telemetry.trainer.checkpoint import (
    CheckpointError,
    CheckpointFolder,
    FoundCheckpoint,
    TrainingState,
)
from toolkit.telemetry.trainer.config import PROCESS_KEY, JobOptions, ProcessOptions, encode_prompt
from toolkit.telemetry.trainer.model import (
    Lora,
    TinyDiT,
    add_lora,
    choose_device,
    flow_loss,
    load_base,
    paint,
    random_times,
)
from toolkit.telemetry.trainer.pictures import (
    IMAGE_SIZE,
    BatchOrder,
    PictureSet,
    derived_generator,
    derived_seed,
    draw_set,
)

EndReason = Literal["finished", "stopped", "interrupted", "signal"]

_VALIDATION_SEED = 1234
_VALIDATED_AT_ONCE = 64
_SAMPLE_SIZE = 256
"""Width and height of a sample's PNG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    reason: EndReason
    step: int
    checkpoint: Path | None
    run_folder: Path | None


def train(job: JobOptions, *, began: float | None = None) -> Outcome:
    """Train `job`, resuming where its options say so, and return how it ended.

    `began` is when the process was started, if it was started for this job alone: its time is recorded from then on.

    Raises:
        OptionsError: the `telemetry:` block is wrong, or this machine or its files do not fit the options.
    """
    options = job.process
    # The logger is opened when it is known which run to resume, and that takes a checkpoint that fits the model:
    # the first phases have ended by then. The monotonic clock: a wall clock may be set while a model loads.
    phases = [time.monotonic()]
    device, model, lora = _model_with_lora(options)
    phases.append(time.monotonic())
    optimizer = torch.optim.AdamW(
        lora.parameters(), lr=options.train.lr, fused=device.type in ("cpu", "cuda")
    )
    phases.append(time.monotonic())
    checkpoints = CheckpointFolder(
        job.save_folder, job.name, keep=options.save.max_step_saves_to_keep, dtype=options.save.dtype
    )
    found, state = _resume(options, checkpoints, lora, optimizer)
    if found is not None:
        phases.append(time.monotonic())
        if state.step >= options.train.steps:
            print(
                f"[run] {found.path} is at step {state.step} of {options.train.steps}: nothing left to train"
            )
            print(
                "[run] raise train.steps to continue; set train.resume: never, or another name, to start over"
            )
            return Outcome(reason="finished", step=state.step, checkpoint=found.path, run_folder=None)

    same_run: dict[str, Any] = {"run_id": state.run_id} if state.run_id else {}
    with TelemetryLogger.from_config(job.mapping, **same_run) as log:
        start_time = wall_time_of(phases[0]) if began is None else began
        with log.training.application(start_time_msec=start_time * 1000), _deterministic():
            for name, start, end in zip(
                (MODEL_INIT, OPTIMIZER_INIT, CHECKPOINT_LOAD), phases, phases[1:], strict=False
            ):
                log.start_span(name, start_time=wall_time_of(start)).stop(stop_time=wall_time_of(end))
            with StopSignals() as signals:
                loop = TrainingLoop(job, model, lora, optimizer, checkpoints, state, log=log, signals=signals)
                loop.put_state("start" if found is None else "load", None if found is None else found.path)
                if found is not None:
                    print(f"[run] resuming from {found.path} at step {state.step}")
                reason = loop.run()
        log.close(reason=reason)
    return Outcome(reason=reason, step=state.step, checkpoint=loop.last_checkpoint, run_folder=log.run_folder)


def _model_with_lora(options: ProcessOptions) -> tuple[torch.device, TinyDiT, Lora]:
    try:
        device = choose_device(options.device)
    except ValueError as error:
        raise OptionsError(f"{PROCESS_KEY}.device: {error}") from error
    try:
        model = load_base(options.model.name_or_path).to(device)
    except ValueError as error:
        raise OptionsError(f"{PROCESS_KEY}.model.name_or_path: {error}") from error
    lora = add_lora(model, options.network, derived_generator(options.train.seed, "lora"))
    if not lora.layers:
        targets = options.network.network_kwargs
        raise OptionsError(
            f"{PROCESS_KEY}.network.network_kwargs chooses no layer: "
            f"only_if_contains is {list(targets.only_if_contains)}; "
            "names look like transformer_blocks.0.attn.to_q and transformer_blocks.4.ff.proj_in"
        )
    return device, model, lora


def _resume(
    options: ProcessOptions, checkpoints: CheckpointFolder, lora: Lora, optimizer: torch.optim.Optimizer
) -> tuple[FoundCheckpoint | None, TrainingState]:
    wanted = options.train.resume
    try:
        if wanted in ("auto", "never"):
            found = checkpoints.latest() if wanted == "auto" else None
        else:
            found = checkpoint.read_checkpoint(Path(wanted))
    except CheckpointError as error:
        raise OptionsError(
            f"{PROCESS_KEY}.train.resume must be auto, never or a checkpoint, got {error}"
        ) from error
    try:
        return found, TrainingState() if found is None else checkpoint.load(found, lora, optimizer)
    except CheckpointError as error:
        raise OptionsError(
            f"cannot resume: {error}. Change {PROCESS_KEY}.network back, or set {PROCESS_KEY}.train.resume: never"
        ) from error


class TrainingLoop:
    """Trains from `state` to the last step, or until it is asked to stop."""

    def __init__(
        self,
        job: JobOptions,
        model: TinyDiT,
        lora: Lora,
        optimizer: torch.optim.Optimizer,
        checkpoints: CheckpointFolder,
        state: TrainingState,
        *,
        log: TelemetryLogger,
        signals: StopSignals,
    ) -> None:
        self._job, self._options, self._train = job, job.process, job.process.train
        self._model, self._lora, self._optimizer = model, lora, optimizer
        self._checkpoints, self._log, self._time, self._signals = checkpoints, log, log.training, signals
        self._device = lora.parameters()[0].device
        self.state = state
        # A session without telemetry keeps the id for the next one with it.
        state.run_id = log.run_id or state.run_id
        self.last_checkpoint: Path | None = None
        self._val_loss: Tensor | None = None
        self._validated_at = self._saved_at = -1
        # A tensor on the device: the mean over an epoch is kept without waiting for a single step.
        self._epoch_loss_sum = torch.tensor(state.epoch_loss_sum, device=self._device)
        self._about_lora = {
            "rank": self._options.network.linear,
            "alpha": self._options.network.linear_alpha,
            "dropout": self._options.network.dropout,
            "target_modules": list(lora.layers),
        }
        with self._time.dataloader_init():
            self._make_pictures()
        self._announce()

    def run(self) -> EndReason:
        """Train, and return why it ended; every way but `stop` leaves a checkpoint of the last step."""
        with self._time.training_loop(
            train_iterations_start=self.state.step, train_iterations_target=self._train.steps
        ):
            if self.state.step == 0:
                self._validate()
                self._sample()
            while self.state.step < self._train.steps:
                self.state.step += 1
                with self._time.training_iteration():
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
        """Draw what is trained on and validated with, and the noise that samples start from."""
        options, validated = self._options, self._train.validation_config
        triggered = options.trigger_word is not None
        pictures = draw_set(options.datasets, triggered=triggered, device=self._device)
        self._batches = BatchOrder(pictures, self._train.batch_size, seed=self._train.seed)
        self._unseen: tuple[PictureSet, Tensor, Tensor] | None = None
        if validated.validate_every:
            # Always with the same noise and times, so that the losses of different steps compare.
            unseen = draw_set(
                options.datasets, triggered=triggered, device=self._device, unseen=validated.num_images
            )
            generator = derived_generator(_VALIDATION_SEED, "validation")
            noise = torch.randn(unseen.pictures.shape, generator=generator)
            times = random_times(len(unseen), generator)
            self._unseen = unseen, noise.to(self._device), times.to(self._device)
        sample = options.sample
        self._prompts = sample.prompts if sample.sample_every else ()
        self._sample_noise = [
            torch.randn(
                3,
                IMAGE_SIZE,
                IMAGE_SIZE,
                generator=derived_generator(sample.seed + (place if sample.walk_seed else 0), "sample"),
            )
            for place in range(len(self._prompts))
        ]

    def _announce(self) -> None:
        """Write the start record, and declare what this loop can be asked for and how much work a step is."""
        options, train, log = self._options, self._train, self._log
        trainable = sum(parameter.numel() for parameter in self._lora.parameters())
        total = sum(parameter.numel() for parameter in self._model.parameters())
        log.log_start(
            config=self._job.mapping,
            lora=self._about_lora,
            model={
                "name": options.model.name_or_path,
                "architecture": options.model.arch,
                "total_params": total,
                "trainable_params": trainable,
            },
            training={
                "batch_size": train.batch_size,
                "gradient_accumulation_steps": train.gradient_accumulation,
                "optimizer": train.optimizer,
                "scheduler": train.lr_scheduler,
                "learning_rate": train.lr,
                "warmup_steps": train.warmup,
                "max_steps": train.steps,
                "max_grad_norm": train.max_grad_norm,
                "dtype": train.dtype,
                "seed": train.seed,
                "device": str(self._device),
                "batches_per_epoch": self._batches.batches_per_epoch,
                "resumed_from_step": self.state.step,
            },
        )
        for action in ("save", "sample", "stop", "save_and_stop"):
            log.declare_action(action)
        log.declare_knob("lr_scale", float, low=0.1, high=2.0)
        samples = train.batch_size * train.gradient_accumulation
        log.training.configure(
            global_batch_size=samples,
            micro_batch_size=train.batch_size,
            seq_length=self._model.tokens_per_picture,
            # Two operations per parameter and token in the forward pass and two in the backward pass: the base is
            # frozen, so only gradients of activations are computed.
            flops_per_sample=4 * total * self._model.tokens_per_picture,
            is_log_throughput_enabled=True,
            train_iterations_target=train.steps,
            train_samples_target=train.steps * samples,
            save_checkpoint_strategy="sync",
        )
        print(
            f"[run] {self._job.name}: LoRA of rank {options.network.linear} on {len(self._lora.layers)} layers, "
            f"{trainable:,} of {total:,} parameters, on {self._device}"
        )

    def _train_step(self) -> None:
        """One optimizer step over `gradient_accumulation` batches; the loss stays on the device."""
        train, step = self._train, self.state.step
        lr = self.state.lr_scale * learning_rate(
            step, lr=train.lr, kind=train.lr_scheduler, warmup=train.warmup, steps=train.steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(derived_seed(train.seed, "dropout", step))
        generator = derived_generator(train.seed, "noise", step, self._device)
        self._model.train()
        loss = torch.zeros((), device=self._device)
        for part in range(train.gradient_accumulation):
            with self._time.data_loading():
                batch = self._batches.batch((step - 1) * train.gradient_accumulation + part)
            with self._time.forward():
                share = self._batch_loss(batch, generator) / train.gradient_accumulation
            with self._time.backward():
                share.backward()
            loss += share.detach()
        with self._time.optimizer_update():
            grad_norm = torch.nn.utils.clip_grad_norm_(self._lora.parameters(), train.max_grad_norm)
            self._optimizer.step()
        with self._time.zero_grad():
            self._optimizer.zero_grad()
        self._epoch_loss_sum += loss
        self.state.epoch_steps += 1
        # The epoch, counted from 1, that the last batch of this step belongs to.
        self.state.epoch = (step * train.gradient_accumulation - 1) // self._batches.batches_per_epoch + 1
        self._log.log_step(step, train_loss=loss, lr=lr, grad_norm=grad_norm, epoch=self.state.epoch)
        self._print_progress(loss, lr)

    def _batch_loss(self, batch: PictureSet, generator: torch.Generator) -> Tensor:
        noise = torch.randn(batch.pictures.shape, generator=generator, device=self._device)
        times = random_times(len(batch), generator)
        kept = torch.rand(len(batch), 1, generator=generator, device=self._device) >= batch.caption_dropout
        return flow_loss(self._model, batch.pictures, noise, times, batch.prompts * kept)

    def _print_progress(self, loss: Tensor, lr: float) -> None:
        """Print how far it is; only then the loss is read from the device."""
        step, steps = self.state.step, self._train.steps
        if step in (1, steps) or step % self._options.logging.log_every == 0:
            print(
                f"[run] step {step}/{steps} ({step / steps:.0%})  loss {loss.item():.4f}  lr {lr:.1e}",
                flush=True,
            )

    def _end_epoch_if_due(self) -> None:
        batches, per_step = self._batches.batches_per_epoch, self._train.gradient_accumulation
        ended = self.state.step * per_step // batches
        if ended == (self.state.step - 1) * per_step // batches:
            return
        self._validate()
        metrics = {"train_loss_mean": self._epoch_loss_sum / self.state.epoch_steps}
        if self._val_loss is not None:
            metrics["val_loss"] = self._val_loss
        self._log.log_epoch(ended, metrics, global_step=self.state.step)
        self._epoch_loss_sum = torch.zeros_like(self._epoch_loss_sum)
        self.state.epoch_steps = 0

    @torch.no_grad()
    def _validate(self) -> None:
        """Log the mean loss over the pictures that are never trained on, once per step."""
        if self._unseen is None or self._validated_at == self.state.step:
            return
        unseen, noise, times = self._unseen
        with self._time.validation_loop():
            self._model.eval()
            total = torch.zeros((), device=self._device)
            for start in range(0, len(unseen), _VALIDATED_AT_ONCE):
                some = slice(start, start + _VALIDATED_AT_ONCE)
                with self._time.validation_iteration():
                    part = unseen.part(some)
                    loss = flow_loss(self._model, part.pictures, noise[some], times[some], part.prompts)
                    total += loss * len(part)
            self._val_loss = total / len(unseen)
        self._validated_at = self.state.step
        self._log.log_eval(self.state.step, val_loss=self._val_loss)

    def _sample(self) -> None:
        """Paint the prompts, from the same noise each time so that pictures of different steps compare."""
        if not self._prompts:
            return
        sample, trigger = self._options.sample, self._options.trigger_word
        with self._time.sampling():
            self._model.eval()
            pictures = paint(
                self._model,
                torch.stack(self._sample_noise).to(self._device),
                torch.tensor([encode_prompt(prompt, trigger) for prompt in self._prompts]).to(self._device),
                steps=sample.sample_steps,
                guidance_scale=sample.guidance_scale,
            )
            size = _SAMPLE_SIZE // IMAGE_SIZE
            pixels = ((pictures + 1) * 127.5).round().byte().permute(0, 2, 3, 1)
            pixels = pixels.repeat_interleave(size, dim=1).repeat_interleave(size, dim=2).cpu()
            for prompt, picture in zip(self._prompts, pixels.numpy(), strict=True):
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
        with self._time.checkpoint_save(state.step, path=path):
            self._checkpoints.save(path, self._lora, self._optimizer, state, self._about_lora)
        self.last_checkpoint = path
        self._log.log_checkpoint(state.step, path, is_best=is_best, seconds=time.monotonic() - began)
        self.put_state("save", path)

    def put_state(self, at: Literal["save", "load", "start"], checkpoint: Path | None) -> None:
        """Record what a checkpoint holds; the next step seeds its generators and sets its rate by itself."""
        done, train = self.state.step * self._train.gradient_accumulation, self._train
        # What is drawn until then is not part of the training: recorded, it would look as if a resume had lost it.
        torch.manual_seed(derived_seed(train.seed, "dropout", self.state.step))
        self._log.state(
            at,
            self.state.step,
            checkpoint=checkpoint,
            optimizer=self._optimizer,
            epoch=done // self._batches.batches_per_epoch,
            data_position=done % self._batches.batches_per_epoch,
            batch_size=train.batch_size,
            accumulation=train.gradient_accumulation,
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
        if self._signals.received is not None:
            self._save()
            return "interrupted" if self._signals.received is signal.SIGINT else "signal"
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


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM for the loop to read; a second one does what it would have done without us."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        # Python lets only the main thread set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.__exit__()
        # print() may be in the middle of a line when the signal comes.
        os.write(
            2, f"\n[run] {self.received.name}: saving after this step; once more ends at once\n".encode()
        )


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make torch compute the same bits each time inside the block, on any number of cores."""
    # cuBLAS reads this when it is first used, and refuses to be deterministic without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.use_deterministic_algorithms(True)
    # Sums differ when they are split. At this size several threads gain little on an idle machine, and on a busy one
    # they wait for each other: on two shared cores one thread is four times as fast as two.
    torch.set_num_threads(1)
    # On Arm, oneDNN uses its own threads regardless of torch's setting, and is four times slower on thin matrices.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property, though not typed as one
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
