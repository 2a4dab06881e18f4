"""What one training job is asked to do: the configuration, parsed once and valid from there on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolkit.core.checks import (
    Check,
    OptionsError,
    anything,
    boolean,
    number,
    one_of,
    optional,
    unknown,
    where,
    whole,
    wrong,
)
from toolkit.core.fields import each, nested, option, read_fields, required
from toolkit.trainer.prompts import STYLES, PromptError, encode_prompt, is_usable_trigger

PROCESS_TYPE = "tiny_lora_trainer"
PROCESS_KEY = "config.process[0]"

Dtype = Literal["float32", "bf16"]
SaveDtype = Literal["float32", "float16", "bf16"]


_TEXT: Check[str] = where(lambda value: isinstance(value, str), "a text")
_DEVICE: Check[str] = where(
    lambda value: isinstance(value, str) and re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value) is not None,
    "auto, cpu, mps, cuda or cuda:N",
)
_TRIGGER: Check[str] = where(
    lambda value: isinstance(value, str) and is_usable_trigger(value), "one word that the model does not know"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Which linear layers get a LoRA, by parts of their names; without any, every layer of the blocks."""

    only_if_contains: tuple[str, ...] = option((), "Layers whose name contains one of these.", each(_TEXT))
    ignore_if_contains: tuple[str, ...] = option((), "Layers to leave out of those.", each(_TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The LoRA."""

    type: Literal["lora"] = option("lora", "Kind of network.", one_of("lora"))
    linear: int = option(16, "Rank.", whole(1, 128))
    linear_alpha: float = option(16.0, "Alpha.", number(above=0))
    dropout: float = option(0.0, "Dropout.", number(0, 0.9))
    network_kwargs: TargetOptions = option(
        TargetOptions(), "Which layers get a LoRA; by default all of the blocks.", nested(TargetOptions)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """When checkpoints are written, and how many are kept."""

    dtype: SaveDtype = option("float32", "Type of the saved weights.", one_of("float32", "float16", "bf16"))
    save_every: int = option(100, "Steps between two checkpoints.", whole(1))
    max_step_saves_to_keep: int = option(4, "Checkpoints kept besides the final one.", whole(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Images of shapes in one style, generated when the training starts."""

    style: str = option("neon", "Style of the images.", one_of(*STYLES))
    num_images: int = option(256, "Number of images.", whole(1, 100_000))
    seed: int = option(0, "Seed of the images.", whole(0))
    caption_dropout_rate: float = option(0.05, "Share of images shown without their caption.", number(0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions:
    """What the optimizer takes besides its learning rate."""

    weight_decay: float = option(0.01, "Weight decay.", number(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """Loss on images that are never trained on, always with the same noise and timesteps, so values compare."""

    validate_every: int = option(
        50, "Steps between two validations, besides the end of each epoch; 0 turns it off.", whole(0)
    )
    num_images: int = option(64, "Number of images.", whole(1, 10_000))
    seed: int = option(1234, "Seed of the images, noise and timesteps.", whole(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The training itself."""

    steps: int = required("Number of optimizer steps.", whole(1))
    batch_size: int = option(8, "Images per batch.", whole(1))
    gradient_accumulation: int = option(1, "Batches per step.", whole(1))
    noise_scheduler: Literal["flowmatch"] = option("flowmatch", "Noise scheduler.", one_of("flowmatch"))
    timestep_type: Literal["linear", "sigmoid"] = option(
        "linear", "How flow timesteps are sampled.", one_of("linear", "sigmoid")
    )
    optimizer: Literal["adamw", "adam"] = option("adamw", "Optimizer.", one_of("adamw", "adam"))
    optimizer_params: OptimizerOptions = option(
        OptimizerOptions(), "Settings of the optimizer.", nested(OptimizerOptions)
    )
    lr: float = option(1e-3, "Learning rate.", number(above=0, high=1))
    lr_scheduler: Literal["constant", "linear", "cosine"] = option(
        "cosine", "Learning rate schedule.", one_of("constant", "linear", "cosine")
    )
    warmup: int = option(0, "Steps in which the learning rate rises from 0 to `lr`.", whole(0))
    max_grad_norm: float = option(1.0, "Longer gradients are clipped to this norm.", number(above=0))
    seed: int = option(42, "Seed of the training.", whole(0))
    dtype: Dtype = option("float32", "Type to compute in; `bf16` needs a GPU.", one_of("float32", "bf16"))
    skip_first_sample: bool = option(False, "Generate no samples before the first step.", boolean)
    resume: str = option(
        "auto",
        "`auto` resumes from the latest checkpoint in the save folder, `never` starts a new run, a path resumes there.",
        _TEXT,
    )
    validation_config: ValidationOptions = option(
        ValidationOptions(), "When and on what to validate.", nested(ValidationOptions)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The base model."""

    name_or_path: str = option(
        "shapes-dit-32", "The included base, or a file that `pretrain_base` wrote.", _TEXT
    )
    arch: Literal["tiny_dit"] = option("tiny_dit", "Architecture.", one_of("tiny_dit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """Images generated during training, to see what the LoRA has learned."""

    sampler: Literal["flowmatch"] = option("flowmatch", "Sampler.", one_of("flowmatch"))
    sample_every: int = option(100, "Steps between two sets of samples; 0 turns them off.", whole(0))
    sample_steps: int = option(20, "Steps per image.", whole(1, 1000))
    guidance_scale: float = option(2.0, "Guidance scale.", number(0))
    prompts: tuple[str, ...] = option((), "One image each; `[trigger]` is the trigger word.", each(_TEXT))
    seed: int = option(42, "Seed of the first image.", whole(0))
    walk_seed: bool = option(True, "Give each prompt its own seed, counting up.", boolean)
    scale: int = option(8, "Size of one image pixel in PNG pixels.", whole(1, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingOptions:
    """The console, and ai-toolkit's keys for other loggers."""

    log_every: int = option(10, "Steps between two readings of the loss for the progress bar.", whole(1))
    use_wandb: bool = option(False, "As in ai-toolkit: mirror the run to W&B.", boolean)
    project_name: str = option("ai-toolkit", "W&B project.", _TEXT)
    run_name: str | None = option(None, "W&B run name.", optional(_TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """One training process."""

    type: Literal["tiny_lora_trainer"] = required("The embedded trainer.", one_of("tiny_lora_trainer"))
    training_folder: str = option("output", "Checkpoints go to `<training_folder>/<name>`.", _TEXT)
    device: str = option(
        "auto", "`auto` takes a GPU if there is one; or `cpu`, `mps`, `cuda`, `cuda:N`.", _DEVICE
    )
    trigger_word: str | None = option(
        None,
        "A new word put in front of every caption; `[trigger]` in a prompt is replaced by it.",
        optional(_TRIGGER),
    )
    log_dir: str | None = option(None, "As in ai-toolkit: write TensorBoard files there.", optional(_TEXT))
    network: NetworkOptions = option(NetworkOptions(), "The LoRA.", nested(NetworkOptions))
    save: SaveOptions = option(SaveOptions(), "When checkpoints are written.", nested(SaveOptions))
    datasets: tuple[DatasetOptions, ...] = option(
        (DatasetOptions(),), "What is trained on.", each(nested(DatasetOptions))
    )
    train: TrainOptions = required("The training itself.", nested(TrainOptions))
    model: ModelOptions = option(ModelOptions(), "The base model.", nested(ModelOptions))
    sample: SampleOptions = option(
        SampleOptions(), "Images generated during training.", nested(SampleOptions)
    )
    logging: LoggingOptions = option(
        LoggingOptions(), "The console and other loggers.", nested(LoggingOptions)
    )
    telemetry: Any = option(None, "The `telemetry:` block, read and checked by the logger.", anything)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """A whole configuration."""

    name: str
    process: ProcessOptions
    mapping: Mapping[str, Any] = field(repr=False)
    """The configuration as it was read; the logger finds its block in it and records the rest."""

    @property
    def save_folder(self) -> Path:
        """Where checkpoints go."""
        return Path(self.process.training_folder) / self.name


def process_type(mapping: Mapping[str, Any]) -> str:
    """Return the type of the job's first process, which names the trainer. Raises OptionsError if it has none."""
    if mapping.get("job") != "extension":
        raise wrong("job", mapping.get("job"), "extension")
    config = mapping.get("config")
    if not isinstance(config, Mapping):
        raise wrong("config", config, "a mapping")
    processes = config.get("process")
    if not isinstance(processes, list) or len(processes) != 1 or not isinstance(processes[0], Mapping):
        raise wrong("config.process", processes, "a list of one mapping")
    kind = processes[0].get("type")
    if not isinstance(kind, str):
        raise wrong(f"{PROCESS_KEY}.type", kind, f"a text such as {PROCESS_TYPE}")
    return kind


def parse_job(mapping: Mapping[str, Any]) -> JobOptions:
    """Return `mapping` as options.

    Raises:
        OptionsError: a key or value is wrong; the message names the dotted key, the value and what is allowed.
    """
    process_type(mapping)
    _refuse_unknown(mapping, ("job", "config", "meta", "telemetry"), "")
    config = mapping["config"]
    _refuse_unknown(config, ("name", "process", "telemetry"), "config.")
    name = _usable_name(config.get("name"))
    process = read_fields(ProcessOptions, PROCESS_KEY, config["process"][0])
    _check_together(process)
    return JobOptions(name=name, process=process, mapping=mapping)


def _refuse_unknown(mapping: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in mapping:
        if key not in known:
            raise unknown(f"{prefix}{str(key)[:100]}", mapping[key], known)


def _usable_name(name: object) -> str:
    # The name becomes a folder and the start of file names.
    if not isinstance(name, str) or not re.fullmatch(
        r"[^\x00-\x1f/\\:*?\"<>|.][^\x00-\x1f/\\:*?\"<>|]{0,99}", name
    ):
        raise wrong("config.name", name, "a text of 1 to 100 characters that can name a folder")
    return name


def _check_together(process: ProcessOptions) -> None:
    """Check what no single key can be checked for on its own."""
    for place, prompt in enumerate(process.sample.prompts):
        try:
            encode_prompt(prompt, process.trigger_word)
        except PromptError as error:
            raise OptionsError(f"{PROCESS_KEY}.sample.prompts[{place}]: {error}") from error
    if not process.datasets:
        raise wrong(f"{PROCESS_KEY}.datasets", [], "a list of at least one")
    images = sum(dataset.num_images for dataset in process.datasets)
    if process.train.batch_size > images:
        raise wrong(
            f"{PROCESS_KEY}.train.batch_size",
            process.train.batch_size,
            f"at most {images}, the number of images in datasets",
        )
