"""What one training job is asked to do: the configuration, parsed once and valid from there on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolkit.core.fields import ConfigError, limited, read_fields
from toolkit.trainer.prompts import STYLES, PromptError, encode_prompt, is_usable_trigger

PROCESS_TYPE = "tiny_lora_trainer"
PROCESS_KEY = "config.process[0]"

Dtype = Literal["float32", "bf16"]
SaveDtype = Literal["float32", "float16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Which linear layers get a LoRA, by parts of their names; no part named means every layer of the blocks."""

    only_if_contains: tuple[str, ...] = ()
    ignore_if_contains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The LoRA."""

    type: Literal["lora"] = "lora"
    linear: int = limited(16, at_least=1, at_most=128)
    """The rank."""
    linear_alpha: float = limited(16.0, above=0)
    dropout: float = limited(0.0, at_least=0, at_most=0.9)
    network_kwargs: TargetOptions = TargetOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """When checkpoints are written, and how many are kept."""

    dtype: SaveDtype = "float32"
    save_every: int = limited(100, at_least=1)
    max_step_saves_to_keep: int = limited(4, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Pictures that are drawn, not read: shapes in one style."""

    style: str = limited("neon", one_of=STYLES)
    num_images: int = limited(256, at_least=1, at_most=100_000)
    seed: int = limited(0, at_least=0)
    caption_dropout_rate: float = limited(0.05, at_least=0, at_most=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions:
    """What the optimizer takes besides its learning rate."""

    weight_decay: float = limited(0.01, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """Loss on pictures that are never trained on, always with the same noise and times, so values compare."""

    validate_every: int = limited(50, at_least=0)
    """Steps between two validations; 0 means never."""
    num_images: int = limited(64, at_least=1, at_most=10_000)
    seed: int = limited(1234, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The training itself."""

    steps: int = limited(at_least=1)
    batch_size: int = limited(8, at_least=1)
    gradient_accumulation: int = limited(1, at_least=1)
    noise_scheduler: Literal["flowmatch"] = "flowmatch"
    timestep_type: Literal["linear", "sigmoid"] = "linear"
    optimizer: Literal["adamw", "adam"] = "adamw"
    optimizer_params: OptimizerOptions = OptimizerOptions()
    lr: float = limited(1e-3, above=0, at_most=1)
    lr_scheduler: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: int = limited(0, at_least=0)
    """Steps in which the learning rate rises from 0 to `lr`."""
    max_grad_norm: float = limited(1.0, above=0)
    seed: int = limited(42, at_least=0)
    dtype: Dtype = "float32"
    skip_first_sample: bool = False
    resume: str = "auto"
    """`auto` resumes from the latest checkpoint in the save folder, `never` starts over, a path resumes from there."""
    validation_config: ValidationOptions = ValidationOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The base model: its shipped name, or a file that `pretrain_base` wrote."""

    name_or_path: str = "shapes-dit-32"
    arch: Literal["tiny_dit"] = "tiny_dit"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """Pictures painted during training, to see what the LoRA has learned."""

    sampler: Literal["flowmatch"] = "flowmatch"
    sample_every: int = limited(100, at_least=0)
    """Steps between two sets of samples; 0 means none."""
    sample_steps: int = limited(20, at_least=1, at_most=1000)
    guidance_scale: float = limited(2.0, at_least=0)
    prompts: tuple[str, ...] = ()
    seed: int = limited(42, at_least=0)
    walk_seed: bool = True
    """Give each prompt a seed of its own, counting up."""
    scale: int = limited(8, at_least=1, at_most=32)
    """How many pixels of the PNG's width show one pixel of the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingOptions:
    """The console, and the keys that ai-toolkit gives other people's loggers."""

    log_every: int = limited(10, at_least=1)
    """Steps between two readings of the loss for the progress bar."""
    use_wandb: bool = False
    project_name: str = "ai-toolkit"
    run_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """One training process."""

    type: Literal["tiny_lora_trainer"]
    training_folder: str = "output"
    device: str = "auto"
    trigger_word: str | None = None
    log_dir: str | None = None
    network: NetworkOptions = NetworkOptions()
    save: SaveOptions = SaveOptions()
    datasets: tuple[DatasetOptions, ...] = (DatasetOptions(),)
    train: TrainOptions
    model: ModelOptions = ModelOptions()
    sample: SampleOptions = SampleOptions()
    logging: LoggingOptions = LoggingOptions()
    telemetry: Any = None
    """Passed over here: the logger reads and checks its own block."""


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
    """Return the type of the job's first process, which says whose trainer the configuration is for.

    Raises:
        ConfigError: `mapping` has no process type.
    """
    if mapping.get("job") != "extension":
        raise ConfigError(f"job must be extension, got {mapping.get('job')!r}")
    config = mapping.get("config")
    if not isinstance(config, Mapping):
        raise ConfigError(f"config must be a mapping, got {config!r}")
    processes = config.get("process")
    if not isinstance(processes, list) or len(processes) != 1 or not isinstance(processes[0], Mapping):
        raise ConfigError(f"config.process must be a list of one mapping, got {processes!r}")
    kind = processes[0].get("type")
    if not isinstance(kind, str):
        raise ConfigError(f"{PROCESS_KEY}.type must be a text such as {PROCESS_TYPE}, got {kind!r}")
    return kind


def parse_job(mapping: Mapping[str, Any]) -> JobOptions:
    """Return `mapping` as options.

    Raises:
        ConfigError: a key or value is wrong; the message names the dotted key, the value and what is allowed.
    """
    process_type(mapping)
    _refuse_unknown(mapping, ("job", "config", "meta", "telemetry"), "")
    config = mapping["config"]
    _refuse_unknown(config, ("name", "process", "telemetry"), "config.")
    name = _usable_name(config.get("name"))
    process = read_fields(ProcessOptions, config["process"][0], PROCESS_KEY)
    _check_together(process)
    return JobOptions(name=name, process=process, mapping=mapping)


def _refuse_unknown(mapping: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    for key in mapping:
        if key not in known:
            raise ConfigError(f"{prefix}{key} is not a known key; known: {', '.join(known)}")


def _usable_name(name: object) -> str:
    # The name becomes a folder and the start of file names.
    if not isinstance(name, str) or not re.fullmatch(
        r"[^\x00-\x1f/\\:*?\"<>|.][^\x00-\x1f/\\:*?\"<>|]{0,99}", name
    ):
        raise ConfigError(
            f"config.name must be a text of 1 to 100 characters that can name a folder, got {name!r}"
        )
    return name


def _check_together(process: ProcessOptions) -> None:
    """Check what no single key can be checked for on its own."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", process.device):
        raise ConfigError(
            f"{PROCESS_KEY}.device must be auto, cpu, mps, cuda or cuda:N, got {process.device!r}"
        )
    if process.trigger_word is not None and not is_usable_trigger(process.trigger_word):
        raise ConfigError(
            f"{PROCESS_KEY}.trigger_word must be one word that the model does not know, got {process.trigger_word!r}"
        )
    for place, prompt in enumerate(process.sample.prompts):
        try:
            encode_prompt(prompt, process.trigger_word)
        except PromptError as error:
            raise ConfigError(f"{PROCESS_KEY}.sample.prompts[{place}]: {error}") from error
    if not process.datasets:
        raise ConfigError(f"{PROCESS_KEY}.datasets must hold at least one, got []")
    images = sum(dataset.num_images for dataset in process.datasets)
    if process.train.batch_size > images:
        raise ConfigError(
            f"{PROCESS_KEY}.train.batch_size must be at most {images}, "
            f"the number of images in datasets, got {process.train.batch_size}"
        )
