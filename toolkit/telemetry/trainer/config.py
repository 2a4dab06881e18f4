"""What one training job is asked to do: its YAML or JSON file, parsed once and valid from there on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toolkit.telemetry.core.checks import (
    Check,
    OptionsError,
    anything,
    boolean,
    number,
    one_of,
    optional,
    shown,
    unknown,
    where,
    whole,
    wrong,
)
from toolkit.telemetry.core.fields import each, nested, option, read_fields, required
from toolkit.telemetry.importers.yaml_text import check

PROCESS_TYPE = "tiny_lora_trainer"
PROCESS_KEY = "config.process[0]"

COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "star")
BASE_STYLES = ("flat", "outline")
"""The styles that the shipped base model was trained on."""

STYLES = (*BASE_STYLES, "neon")
"""Every style that can be drawn; the last is what a LoRA can teach."""

_FILLERS = frozenset(("a", "an", "the", "in", "of", "with", "style", "shape"))
_EMPTY_WORD = 0
_TRIGGER_WORD = 1
_WORDS = {word: number for number, word in enumerate((*COLOURS, *SHAPES, *BASE_STYLES), start=2)}

VOCABULARY_SIZE = 2 + len(_WORDS)
PROMPT_LENGTH = 6
"""Number of meaningful words in a prompt; shorter ones are padded."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The LoRA."""

    type: str = option("lora", "Kind of network.", one_of("lora"))
    linear: int = option(16, "Rank.", whole(1, 128))
    linear_alpha: float = option(16.0, "Alpha.", number(above=0))
    dropout: float = option(0.0, "Dropout.", number(0, 0.9))
    network_kwargs: TargetOptions = option(
        TargetOptions(), "Which layers get a LoRA; by default all of the blocks.", nested(TargetOptions)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """When checkpoints are written, and how many are kept."""

    dtype: str = option("float32", "Type of the saved weights.", one_of("float32", "float16", "bf16"))
    save_every: int = option(100, "Steps between two checkpoints.", whole(1))
    max_step_saves_to_keep: int = option(4, "Checkpoints kept besides the final one.", whole(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """Images of shapes in one style, generated when the training starts."""

    style: str = option("neon", "Style of the images.", one_of(*STYLES))
    num_images: int = option(256, "Number of images.", whole(1, 100_000))
    caption_dropout_rate: float = option(0.05, "Share of images shown without their caption.", number(0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """Loss on images that are never trained on, always with the same noise and timesteps, so values compare."""

    validate_every: int = option(
        50, "Steps between two validations, besides the end of each epoch; 0 turns it off.", whole(0)
    )
    num_images: int = option(64, "Number of images.", whole(1, 10_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The training itself."""

    steps: int = required("Number of optimizer steps.", whole(1))
    batch_size: int = option(8, "Images per batch.", whole(1))
    gradient_accumulation: int = option(1, "Batches per step.", whole(1))
    noise_scheduler: str = option("flowmatch", "Noise scheduler.", one_of("flowmatch"))
    timestep_type: str = option("linear", "How flow timesteps are sampled.", one_of("linear"))
    optimizer: str = option("adamw", "Optimizer.", one_of("adamw"))
    lr: float = option(1e-3, "Learning rate.", number(above=0, high=1))
    lr_scheduler: str = option("cosine", "Learning rate schedule.", one_of("constant", "cosine"))
    warmup: int = option(0, "Steps in which the learning rate rises from 0 to `lr`.", whole(0))
    max_grad_norm: float = option(1.0, "Longer gradients are clipped to this norm.", number(above=0))
    seed: int = option(42, "Seed of the training.", whole(0))
    dtype: str = option("float32", "Type to compute in.", one_of("float32"))
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
    arch: str = option("tiny_dit", "Architecture.", one_of("tiny_dit"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """Images generated during training, to see what the LoRA has learned."""

    sampler: str = option("flowmatch", "Sampler.", one_of("flowmatch"))
    sample_every: int = option(100, "Steps between two sets of samples; 0 turns them off.", whole(0))
    sample_steps: int = option(20, "Steps per image.", whole(1, 1000))
    guidance_scale: float = option(2.0, "Guidance scale.", number(0))
    prompts: tuple[str, ...] = option((), "One image each; `[trigger]` is the trigger word.", each(_TEXT))
    seed: int = option(42, "Seed of the first image.", whole(0))
    walk_seed: bool = option(True, "Give each prompt its own seed, counting up.", boolean)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingOptions:
    """The console, and ai-toolkit's keys for other loggers."""

    log_every: int = option(10, "Steps between two lines of progress on the console.", whole(1))
    use_wandb: bool = option(False, "As in ai-toolkit: mirror the run to W&B.", boolean)
    project_name: str = option("ai-toolkit", "W&B project.", _TEXT)
    run_name: str | None = option(None, "W&B run name.", optional(_TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """One training process."""

    type: str = required("The embedded trainer.", one_of("tiny_lora_trainer"))
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


def read_config_file(path: Path, *, name: str | None = None) -> dict[str, Any]:
    """Return the content of `path`, with `${VARIABLE}` and `[name]` replaced.

    `[name]` becomes `name`, or `config.name` by default.

    Raises:
        OptionsError: as `read_training_yaml`, or there is no name.
    """
    content = read_training_yaml(path)
    filled: dict[str, Any] = _fill_in_name(content, _job_name(content, name))
    return filled


def read_training_yaml(path: Path) -> dict[str, Any]:
    """Return the configuration in a YAML or JSON file, with each `${VARIABLE}` replaced from the environment.

    They are replaced before the file is parsed, as in ai-toolkit, so a value may be a number.

    Raises:
        OptionsError: the file cannot be read or parsed, is not a mapping, or a variable is not set.
            The message does not name the file: the caller does.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionsError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionsError(f"is not valid UTF-8: {error.reason}") from error
    content = parse_config(_fill_in_environment(text), is_json=path.suffix.lower() == ".json")
    if not isinstance(content, dict):
        raise OptionsError("is not a mapping, as the configuration of a training must be")
    return content


def _fill_in_environment(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        variable = match.group(1)
        if variable not in os.environ:
            line = text.count("\n", 0, match.start()) + 1
            raise OptionsError(f"line {line}: the environment variable {variable} is not set")
        return os.environ[variable]

    return re.sub(r"\$\{([^}\n]{1,200})\}", value, text)


def parse_config(text: str, *, is_json: bool = False) -> object:
    """Return the content of a YAML or JSON file. Raises OptionsError if it is damaged, huge or too deep."""
    try:
        if is_json:
            return json.loads(text)
        check(text)
        return _Loader(text).get_single_data()
    except json.JSONDecodeError as error:
        raise OptionsError(f"line {error.lineno}: invalid JSON: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        # PyYAML's own message repeats the line, which may contain a secret.
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise OptionsError(f"{line}invalid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # PyYAML passes on Python's errors for a date such as 2001-99-99; these, too, may repeat a value.
        raise OptionsError(f"invalid {'JSON' if is_json else 'YAML'}: it cannot be parsed") from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that is in a mapping twice, of which PyYAML takes the last one without a word."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault((key.tag, key.value), line) != line:
                problem = f"the key {shown(key.value)} is in line {lines[key.tag, key.value]} already"
                raise yaml.composer.ComposerError(problem=problem, problem_mark=key.start_mark)
        return node


def _job_name(content: Mapping[str, Any], name: str | None) -> str:
    config = content.get("config")
    configured = config.get("name") if isinstance(config, dict) else None
    chosen = name if name is not None else configured
    if not isinstance(chosen, str) or not chosen.strip():
        raise wrong("config.name", chosen, "a text that is not empty")
    if "[name]" in chosen:
        raise OptionsError(f"config.name is {chosen!r}: set the value of [name] with --name")
    return chosen


def _fill_in_name(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace("[name]", name)
    if isinstance(value, dict):
        return {key: _fill_in_name(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in_name(item, name) for item in value]
    return value


class PromptError(ValueError):
    """A prompt has an unknown word, or too many words."""


def encode_prompt(prompt: str, trigger_word: str | None = None) -> list[int]:
    """Return the word numbers of `prompt`, always `PROMPT_LENGTH` of them.

    The trigger word, or the placeholder `[trigger]`, is a number that the base model ignores:
    its meaning is what a LoRA learns.

    Raises:
        PromptError: a word is unknown, or there are more than `PROMPT_LENGTH` words.
    """
    numbers = [_number(word, trigger_word) for word in _words(prompt) if word not in _FILLERS]
    if len(numbers) > PROMPT_LENGTH:
        raise PromptError(f"{len(numbers)} words in {prompt!r}; at most {PROMPT_LENGTH} are read")
    return numbers + [_EMPTY_WORD] * (PROMPT_LENGTH - len(numbers))


def is_usable_trigger(word: str) -> bool:
    """Return whether `word` is a single word without a meaning of its own."""
    return _words(word) == [word.lower()] and word.lower() not in _WORDS and word.lower() not in _FILLERS


def _words(prompt: str) -> list[str]:
    return re.findall(r"\[trigger\]|[\w-]+", prompt.lower())


def _number(word: str, trigger_word: str | None) -> int:
    if word == "[trigger]" or (trigger_word is not None and word == trigger_word.lower()):
        return _TRIGGER_WORD
    try:
        return _WORDS[word]
    except KeyError:
        known = ", ".join((*_WORDS, *([trigger_word] if trigger_word else [])))
        raise PromptError(f"unknown word {word!r}; known: {known}") from None
