"""What the example's YAML may say: each key with its default, its description and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.telemetry.core.checks import (
    Check,
    OptionsError,
    anything,
    number,
    one_of,
    optional,
    text,
    where,
    whole,
    wrong,
)
from toolkit.telemetry.core.fields import each, nested, option, read_fields, required
from toolkit.telemetry.trainer.prompts import encode_prompt

PROCESS_TYPE = "tiny_lora_trainer"
PROCESS_KEY = "config.process[0]"


def _matching(pattern: str, allowed: str) -> Check[str]:
    return where(lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The LoRA."""

    linear: int = option(16, "Rank.", whole(1, 128))
    linear_alpha: float = option(16.0, "Alpha.", number(above=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The training itself: AdamW, in float32, on images of neon signs that are generated when it starts."""

    steps: int = required("Number of optimizer steps.", whole(1))
    num_images: int = option(256, "Images to train on.", whole(1, 100_000))
    batch_size: int = option(8, "Images per batch.", whole(1))
    lr: float = option(1e-3, "Learning rate.", number(above=0, high=1))
    lr_scheduler: str = option("cosine", "Learning rate schedule.", one_of("constant", "cosine"))
    warmup: int = option(0, "Steps in which the learning rate rises from 0 to `lr`.", whole(0))
    seed: int = option(42, "Seed of the training.", whole(0))
    save_every: int = option(100, "Steps between two checkpoints.", whole(1))
    validate_every: int = option(
        50,
        "Steps between two validations, on images that are never trained on; 0 turns them off.",
        whole(0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """Images generated during training, to see what the LoRA has learned."""

    sample_every: int = option(100, "Steps between two sets of samples; 0 turns them off.", whole(0))
    prompts: tuple[str, ...] = option((), "One image each; `[trigger]` is the trigger word.", each(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """One training process."""

    type: str = required("The example trainer.", one_of(PROCESS_TYPE))
    training_folder: str = option("output", "Checkpoints go to `<training_folder>/<name>`.", text)
    device: str = option(
        "auto",
        "`auto` takes a GPU if there is one; or `cpu`, `mps`, `cuda`, `cuda:N`.",
        _matching(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, mps, cuda or cuda:N"),
    )
    trigger_word: str | None = option(
        None,
        "A new word put in front of every caption; `[trigger]` in a prompt is replaced by it.",
        optional(_matching(r"[^\W_]+", "one word")),
    )
    network: NetworkOptions = option(NetworkOptions(), "The LoRA.", nested(NetworkOptions))
    train: TrainOptions = required("The training itself.", nested(TrainOptions))
    sample: SampleOptions = option(
        SampleOptions(), "Images generated during training.", nested(SampleOptions)
    )
    telemetry: Any = option(None, "The `telemetry:` block, read and checked by the logger.", anything)

    def __post_init__(self) -> None:
        """Check what no single key can be checked for on its own."""
        for place, prompt in enumerate(self.sample.prompts):
            try:
                encode_prompt(prompt, self.trigger_word)
            except ValueError as error:
                raise OptionsError(f"{PROCESS_KEY}.sample.prompts[{place}]: {error}") from error
        if self.train.batch_size > self.train.num_images:
            allowed = f"at most {self.train.num_images}, the number of images"
            raise wrong(f"{PROCESS_KEY}.train.batch_size", self.train.batch_size, allowed)


def _read_process(key: str, value: Any) -> ProcessOptions:
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], Mapping):
        raise wrong(key, value, "a list of one mapping")
    if value[0].get("type") != PROCESS_TYPE:
        # Before its other keys, which are another trainer's.
        allowed = f"{PROCESS_TYPE}; ai-toolkit trains its types itself: telemetry setup ai-toolkit attach"
        raise wrong(f"{key}[0].type", value[0].get("type"), allowed)
    return read_fields(ProcessOptions, f"{key}[0]", value[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The part `config` of a file: a name, and what to train."""

    name: str = required(
        "Folder and file names.",
        _matching(
            r"(?!\.)[^\x00-\x1f/\\:*?\"<>|]{1,100}", "a text of 1 to 100 characters that can name a folder"
        ),
    )
    process: ProcessOptions = required("One training.", Check(_read_process, "a list of one mapping"))
    telemetry: Any = option(None, "The `telemetry:` block may be here instead.", anything)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """A whole file."""

    job: str = required("As in ai-toolkit.", one_of("extension"))
    config: JobOptions = required("The job.", nested(JobOptions))
    meta: Any = option(None, "As in ai-toolkit; recorded, and not used.", anything)
    telemetry: Any = option(None, "The `telemetry:` block may be here instead.", anything)


def parse_job(mapping: Mapping[str, Any]) -> JobOptions:
    """Return the job that a whole file describes.

    Raises:
        OptionsError: a key or value is wrong; the message names the dotted key, the value and what is allowed.
    """
    return read_fields(FileOptions, "", mapping).config
