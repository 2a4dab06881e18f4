"""The allow-list: which properties an event may have, and which values. Nothing else is ever sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from toolkit.mirrors.usage import allowed_words
from toolkit.mirrors.usage.allowed_words import OTHER
from toolkit.privacy.public_names import DEVICE
from toolkit.runfolder.untrusted import is_number

RUN_START: Final = "run-start"
RUN_PROGRESS: Final = "run-progress"
RUN_END: Final = "run-end"

Check = Callable[[Any], Any]
"""Returns the value to send, or None to send nothing."""


def allowed(event: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the allowed properties of an event, as they are sent; unknown or disallowed values are omitted."""
    sent = {name: check(found.get(name)) for name, check in EVENTS[event].items()}
    return {name: value for name, value in sent.items() if value is not None}


def whole(low: int, high: int) -> Check:
    """Check that a value is an integer within these bounds."""

    def check(value: Any) -> int | None:
        number = _number(value)
        return int(number) if number is not None and number == int(number) and low <= number <= high else None

    return check


def real(low: float, high: float, digits: int = 6) -> Check:
    """Check that a value is a number within these bounds; it is rounded to `digits` significant digits."""

    def check(value: Any) -> float | None:
        number = _number(value)
        return float(f"{number:.{digits}g}") if number is not None and low <= number <= high else None

    return check


def about(high: int, digits: int = 2) -> Check:
    """Check that a value is a count up to `high`; it is rounded to `digits` significant digits."""

    def check(value: Any) -> int | None:
        number = _number(value)
        return int(float(f"{number:.{digits}g}")) if number is not None and 1 <= number <= high else None

    return check


def flag(value: Any) -> bool | None:
    """Check that a value is true or false."""
    return value if isinstance(value, bool) else None


def one_of(words: Collection[str]) -> Check:
    """Check that a value is one of these words, ignoring case; any other is sent as "other"."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str) or not value:
            return None
        word = value.lower()
        return word if word in words else OTHER

    return check


def list_of(item: Check, most: int) -> Check:
    """Check each item of a list, up to `most` items."""

    def check(value: Any) -> list[Any] | None:
        if not isinstance(value, list):
            return None
        checked = [item(each) for each in value[:most]]
        return [each for each in checked if each is not None] or None

    return check


def matching(pattern: re.Pattern[str], instead: str | None = None) -> Check:
    """Check that a text matches a pattern; `instead` is sent for any other."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str):
            return None
        return value if pattern.fullmatch(value) else instead

    return check


def mapping_of(names: Collection[str] | re.Pattern[str], item: Check) -> Check:
    """Check a mapping whose keys are among these, or match this pattern."""

    def check(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        known = (
            name
            for name in value
            if isinstance(name, str)
            and (names.fullmatch(name) if isinstance(names, re.Pattern) else name in names)
        )
        checked = {name: item(value[name]) for name in known}
        return {name: each for name, each in checked.items() if each is not None} or None

    return check


def shape(**checks: Check) -> Check:
    """Check a mapping with these fields."""

    def check(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        checked = {name: check(value.get(name)) for name, check in checks.items()}
        return {name: each for name, each in checked.items() if each is not None} or None

    return check


def _number(value: Any) -> float | None:
    if isinstance(value, str) and _NUMERAL.fullmatch(value):
        # YAML reads 2e-3 as a string.
        value = float(value)
    return value if is_number(value) and -1e18 < value < 1e18 else None


_NUMERAL = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?")
# Three numbers at most: four may be an IP address.
_VERSION = re.compile(
    r"[0-9]{1,4}(?:\.[0-9]{1,8}){0,2}(?:\.?(?:a|b|rc|dev|post)[0-9]{0,8}){0,2}(?:\+(?:cpu|cu[0-9]{2,3}|rocm[0-9.]{1,6}|xpu))?"
)
_SHORT_VERSION = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,5}){0,2}")
_MODEL = re.compile(r"[A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96}")
_FRAME = re.compile(
    r"[A-Za-z0-9_.]{1,160}:[0-9]{1,7}(?: in [A-Za-z0-9_<>.]{1,80})?|\(script\)|… [0-9]{1,7} frames"
)
_ERROR = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,100}")

_BYTES: Final = whole(0, 10**16)
_SECONDS: Final = real(0.0, 1e10)
_COUNT: Final = whole(0, 10**15)
_RATE: Final = real(0.0, 1e12)
_FIGURE: Final = real(-1e15, 1e15)

MOST_ERRORS: Final = 10
MOST_FRAMES: Final = 31
MOST_DEVICES: Final = 64
MOST_EPOCHS: Final = 100

_PACE: Final[Mapping[str, Check]] = {
    "step": _COUNT,
    "epoch": real(0.0, 1e9),
    "progress": real(0.0, 1.0, digits=3),
    "train_loss": _FIGURE,
    "learning_rate": _FIGURE,
    "grad_norm": _FIGURE,
    "samples_per_second": _RATE,
    "steps_per_second": _RATE,
    "peak_cpu_memory_bytes": _BYTES,
    "peak_gpu_memory_bytes": _BYTES,
}

EVENTS: Final[Mapping[str, Mapping[str, Check]]] = {
    RUN_START: {
        "os": one_of(allowed_words.SYSTEMS),
        "os_version": matching(_SHORT_VERSION),
        "machine": one_of(allowed_words.MACHINES),
        "python_version": matching(_SHORT_VERSION),
        "package_versions": mapping_of(allowed_words.PACKAGES, matching(_VERSION, OTHER)),
        "cpu_count": whole(1, 100_000),
        "memory_gb": whole(1, 1_000_000),
        "accelerator_type": one_of(allowed_words.ACCELERATORS),
        "accelerator_count": whole(0, 100_000),
        "accelerator_models": list_of(matching(DEVICE, OTHER), MOST_DEVICES),
        "accelerator_memory_gb": list_of(whole(1, 1_000_000), MOST_DEVICES),
        "world_size": whole(1, 1_000_000),
        "trainer": one_of(allowed_words.TRAINERS),
        "is_resumed": flag,
        "model": matching(_MODEL),
        "architecture": one_of(allowed_words.ARCHITECTURES),
        "total_parameters": about(10**17),
        "trainable_parameters": about(10**17),
        "quantize": flag,
        "low_vram": flag,
        "model_dtype": one_of(allowed_words.DTYPES),
        "lora_type": one_of(allowed_words.LORA_TYPES),
        "lora_rank": whole(1, 1_000_000),
        "lora_alpha": _FIGURE,
        "lora_dropout": real(0.0, 1.0),
        "lora_conv_rank": whole(1, 1_000_000),
        "lora_conv_alpha": _FIGURE,
        "batch_size": whole(1, 10**9),
        "gradient_accumulation_steps": whole(1, 10**9),
        "effective_batch_size": whole(1, 10**12),
        "gradient_checkpointing": flag,
        "max_grad_norm": _FIGURE,
        "max_steps": whole(1, 10**15),
        "max_epochs": real(0.0, 1e9),
        "warmup_steps": _COUNT,
        "learning_rate": _FIGURE,
        "optimizer": one_of(allowed_words.OPTIMIZERS),
        "scheduler": one_of(allowed_words.SCHEDULERS),
        "dtype": one_of(allowed_words.DTYPES),
    },
    RUN_PROGRESS: {**_PACE, "elapsed_seconds": _SECONDS, "seconds_since_last_report": _SECONDS},
    RUN_END: {
        "status": one_of(allowed_words.STATUSES),
        **_PACE,
        "total_time_seconds": _SECONDS,
        "total_steps": _COUNT,
        "epochs_completed": _COUNT,
        "epoch_times": mapping_of(re.compile(r"epoch_[0-9]{1,9}_seconds"), _SECONDS),
        "average_epoch_time_seconds": _SECONDS,
        "gpu_memory": mapping_of(re.compile(r"gpu_[0-9]{1,5}_peak_memory_bytes"), _BYTES),
        "records_lost": _COUNT,
        "telemetry_errors": _COUNT,
        "errors_total": _COUNT,
        "errors": list_of(
            shape(type=matching(_ERROR), count=_COUNT, stack=list_of(matching(_FRAME), MOST_FRAMES)),
            MOST_ERRORS,
        ),
    },
}
"""Each event with its allowed properties."""
