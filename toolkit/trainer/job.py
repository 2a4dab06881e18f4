"""One training job from its options to its end: build the parts, open the logger, run the loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from toolkit.core.checks import OptionsError
from toolkit.core.wall_times import wall_time_of
from toolkit.telemetry import TelemetryLogger
from toolkit.timing.names import CHECKPOINT_LOAD, MODEL_INIT, OPTIMIZER_INIT
from toolkit.trainer import checkpoint
from toolkit.trainer.base_weights import BaseWeightsError, load_base
from toolkit.trainer.checkpoint import CheckpointError, CheckpointFolder, FoundCheckpoint, TrainingState
from toolkit.trainer.config import PROCESS_KEY, JobOptions, ProcessOptions
from toolkit.trainer.dataset import BatchOrder, training_set, validation_set
from toolkit.trainer.device import choose_device, deterministic
from toolkit.trainer.loop import EndReason, Parts, TrainingLoop
from toolkit.trainer.lora import Lora, add_lora
from toolkit.trainer.model import TinyDiT
from toolkit.trainer.progress import Progress, open_progress
from toolkit.trainer.samples import Sampler
from toolkit.trainer.seeds import derived_generator
from toolkit.trainer.stop_signals import StopSignals
from toolkit.trainer.validation import Validation


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
    start_up = _StartUp(began)
    device = _device(options)
    with start_up.phase(MODEL_INIT):
        model, lora = _model_with_lora(options, device)
    with start_up.phase(OPTIMIZER_INIT):
        optimizer = _optimizer(options, lora, device)
    checkpoints = CheckpointFolder(
        job.save_folder, job.name, keep=options.save.max_step_saves_to_keep, dtype=options.save.dtype
    )
    found = _checkpoint_to_resume(options, checkpoints)
    state = TrainingState()
    if found is not None:
        with start_up.phase(CHECKPOINT_LOAD):
            state = _resume(found, lora, optimizer)
    if found is not None and state.step >= options.train.steps:
        print(f"[run] {found.path} is at step {state.step} of {options.train.steps}: nothing left to train")
        print("[run] raise train.steps to continue; set train.resume: never, or another name, to start over")
        return Outcome(reason="finished", step=state.step, checkpoint=found.path, run_folder=None)

    # The logger resumes the run that wrote the checkpoint.
    same_run: dict[str, Any] = {"run_id": state.run_id} if state.run_id else {}
    with TelemetryLogger.from_config(job.mapping, **same_run) as log:
        with log.training.application(start_time_msec=start_up.began * 1000), deterministic():
            start_up.log_to(log)
            with log.training.dataloader_init():
                samples_parent = log.run_folder or job.save_folder
                parts = _parts(job, model, lora, optimizer, checkpoints, samples_parent, device)
            _announce(job, log, parts, state)
            _configure_throughput(options, log, model)
            if found is not None:
                print(f"[run] resuming from {found.path} at step {state.step}")
            with StopSignals() as signals, _progress(options, state) as progress:
                loop = TrainingLoop(options, parts, state, log=log, progress=progress, signals=signals)
                reason = loop.run()
        log.close(reason=reason)
    return Outcome(reason=reason, step=loop.step, checkpoint=loop.last_checkpoint, run_folder=log.run_folder)


def _configure_throughput(options: ProcessOptions, log: TelemetryLogger, model: TinyDiT) -> None:
    """Declare the work per step, so that throughput is also logged in tokens and FLOPS."""
    train = options.train
    parameters = sum(parameter.numel() for parameter in model.parameters())
    log.training.configure(
        global_batch_size=train.batch_size * train.gradient_accumulation,
        micro_batch_size=train.batch_size,
        seq_length=model.tokens_per_picture,
        # Two operations per parameter and token in the forward pass and two in the backward pass: the base is frozen,
        # so only gradients of activations are computed.
        flops_per_sample=4 * parameters * model.tokens_per_picture,
        is_log_throughput_enabled=True,
        train_iterations_target=train.steps,
        train_samples_target=train.steps * train.batch_size * train.gradient_accumulation,
        save_checkpoint_strategy="sync",
    )


class _StartUp:
    """Times the phases before the logger is open.

    The logger is opened when it is known which run to resume, and that takes a checkpoint that fits the model: the
    first phases have ended by then and are logged afterwards.
    """

    def __init__(self, began: float | None = None) -> None:
        # The monotonic clock: a wall clock may be set while a model loads.
        self._began = time.monotonic() - (0.0 if began is None else time.time() - began)
        self._phases: list[tuple[str, float, float]] = []

    @property
    def began(self) -> float:
        """Wall time at which the job began, or its process if that was started for it."""
        return wall_time_of(self._began)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        began = time.monotonic()
        yield
        self._phases.append((name, began, time.monotonic()))

    def log_to(self, log: TelemetryLogger) -> None:
        """Log the phases as spans in the span that is open now."""
        for name, began, ended in self._phases:
            log.start_span(name, start_time=wall_time_of(began)).stop(stop_time=wall_time_of(ended))
        self._phases.clear()


def _device(options: ProcessOptions) -> torch.device:
    try:
        return choose_device(options.device)
    except ValueError as error:
        raise OptionsError(f"{PROCESS_KEY}.device: {error}") from error


def _model_with_lora(options: ProcessOptions, device: torch.device) -> tuple[TinyDiT, Lora]:
    try:
        model = load_base(options.model.name_or_path).to(device)
    except BaseWeightsError as error:
        raise OptionsError(f"{PROCESS_KEY}.model.name_or_path: {error}") from error
    network = options.network
    targets = network.network_kwargs
    lora = add_lora(
        model,
        rank=network.linear,
        alpha=network.linear_alpha,
        dropout=network.dropout,
        only_if_contains=targets.only_if_contains,
        ignore_if_contains=targets.ignore_if_contains,
        generator=derived_generator(options.train.seed, "lora"),
    )
    if not lora.layers:
        raise OptionsError(
            f"{PROCESS_KEY}.network.network_kwargs chooses no layer: "
            f"only_if_contains is {list(targets.only_if_contains)}, "
            f"ignore_if_contains is {list(targets.ignore_if_contains)}; "
            "names look like transformer_blocks.0.attn.to_q and transformer_blocks.4.ff.proj_in"
        )
    return model, lora


def _optimizer(options: ProcessOptions, lora: Lora, device: torch.device) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if options.train.optimizer == "adamw" else torch.optim.Adam
    weight_decay = options.train.optimizer_params.weight_decay
    fused = device.type in ("cpu", "cuda")
    return kind(lora.parameters(), lr=options.train.lr, weight_decay=weight_decay, fused=fused)


def _checkpoint_to_resume(options: ProcessOptions, checkpoints: CheckpointFolder) -> FoundCheckpoint | None:
    wanted = options.train.resume
    if wanted == "never":
        return None
    if wanted == "auto":
        return checkpoints.latest()
    try:
        return checkpoint.read_header(Path(wanted))
    except CheckpointError as error:
        raise OptionsError(
            f"{PROCESS_KEY}.train.resume must be auto, never or a checkpoint, got {error}"
        ) from error


def _resume(found: FoundCheckpoint, lora: Lora, optimizer: torch.optim.Optimizer) -> TrainingState:
    try:
        return checkpoint.load(found, lora, optimizer)
    except CheckpointError as error:
        raise OptionsError(
            f"cannot resume: {error}. Change {PROCESS_KEY}.network back, or set {PROCESS_KEY}.train.resume: never"
        ) from error


def _parts(
    job: JobOptions,
    model: TinyDiT,
    lora: Lora,
    optimizer: torch.optim.Optimizer,
    checkpoints: CheckpointFolder,
    samples_parent: Path,
    device: torch.device,
) -> Parts:
    options = job.process
    train, checked = options.train, options.train.validation_config
    triggered = options.trigger_word is not None
    pictures = training_set(options.datasets, triggered=triggered, device=device)
    validation = None
    if checked.validate_every:
        unseen = validation_set(options.datasets, checked.num_images, triggered=triggered, device=device)
        validation = Validation(unseen, timestep_type=train.timestep_type, seed=checked.seed)
    sampler = None
    if options.sample.sample_every and options.sample.prompts:
        sampler = Sampler(options.sample, trigger_word=options.trigger_word, device=device)
    return Parts(
        model=model,
        lora=lora,
        optimizer=optimizer,
        batches=BatchOrder(pictures, train.batch_size, seed=train.seed),
        validation=validation,
        sampler=sampler,
        samples_folder=samples_parent / "samples",
        checkpoints=checkpoints,
        about_lora=_about_lora(options, lora),
        device=device,
    )


def _about_lora(options: ProcessOptions, lora: Lora) -> dict[str, object]:
    return {
        "rank": options.network.linear,
        "alpha": options.network.linear_alpha,
        "dropout": options.network.dropout,
        "target_modules": lora.target_modules,
    }


def _announce(job: JobOptions, log: TelemetryLogger, parts: Parts, state: TrainingState) -> None:
    """Write the start record, and say what this loop can be asked for."""
    options, train = job.process, job.process.train
    trainable = sum(parameter.numel() for parameter in parts.lora.parameters())
    total = sum(parameter.numel() for parameter in parts.model.parameters())
    log.log_start(
        config=job.mapping,
        lora=parts.about_lora,
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
            "device": str(parts.device),
            "batches_per_epoch": parts.batches.batches_per_epoch,
            "resumed_from_step": state.step,
        },
    )
    for action in ("save", "sample", "stop", "save_and_stop"):
        log.declare_action(action)
    log.declare_knob("lr_scale", float, low=0.1, high=2.0)
    print(
        f"[run] {job.name}: LoRA of rank {options.network.linear} on {len(parts.lora.layers)} layers, ",
        end="",
    )
    print(f"{trainable:,} of {total:,} parameters, on {parts.device}")


def _progress(options: ProcessOptions, state: TrainingState) -> Progress:
    return open_progress(start=state.step, steps=options.train.steps, read_every=options.logging.log_every)
