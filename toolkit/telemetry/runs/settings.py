"""Settings of several runs: which differ, and how one is written."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.runfolder.records import OF_THE_JOB

_SEEDS: Final = frozenset({"seed", "random_seed", "data_seed", "global_seed", "torch_seed"})
_LABELS: Final = frozenset(
    {
        *("name", "run_name", "experiment_name", "job_name", "run_id", "id", "notes", "description", "tags"),
        *"output_dir log_dir logging_dir save_dir training_folder host hostname pid port".split(),
        *OF_THE_JOB,
        *("commit", "git_commit", "created", "created_at", "started", "date", "time", "timestamp", "version"),
    }
)
_LONG_NAME: Final = 22
UNSET: Final = "not set"


def setting_text(value: Any, *, exact: bool = False) -> str:
    """Return one setting as people write it: 1e-4, 0.05, 64, true, adamw; a number to three digits unless `exact`."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if value == 0 or 1e-3 <= abs(value) < 1e6 or not math.isfinite(value):
            return f"{value:.15g}" if exact else f"{value:.3g}" if abs(value) < 100 else f"{value:.6g}"
        mantissa, exponent = (f"{value:.14e}" if exact else f"{value:.2e}").split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return str(value)


def setting_names(keys: Sequence[str]) -> dict[str, str]:
    """Return what each setting is called in a table: its name, or the end of a long one if no other has the same."""
    ends = {key: key.rpartition(".")[2] if len(key) > _LONG_NAME else key for key in keys}
    times = Counter(ends.values())
    return {key: end if times[end] == 1 else key for key, end in ends.items()}


def as_number(value: Any) -> float | None:
    """Return a setting as a finite number; YAML reads 1e-4 as a text."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float, str)):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None
    return None


def is_label(key: str) -> bool:
    """Return whether a setting only names a run: its name, id, tags, folder or host."""
    parts = re.split(r"[./]|\[\d+\]", key.lower())
    return any(part in _LABELS for part in [part for part in parts if part][-1:]) or "tags" in parts


def differing_settings(settings: Sequence[Mapping[str, Any]], *, most: int = 100) -> list[str]:
    """Return the settings with different values in some runs, without names of runs; seeds last."""
    values: dict[str, set[str]] = {}
    for key in dict.fromkeys(key for config in settings for key in config):
        if not is_label(key):
            values[key] = {level_text(config.get(key)) for config in settings}
    return sorted((key for key, found in values.items() if len(found) > 1), key=is_seed)[:most]


def level_text(value: Any) -> str:
    """Return a text that is the same for equal settings."""
    number = as_number(value)
    return repr(number) if number is not None else setting_text(value)


def is_seed(key: str) -> bool:
    """Return whether a setting is a seed."""
    return key.replace("/", ".").rsplit(".", 1)[-1].lower() in _SEEDS


def seed_text(settings: Mapping[str, Any]) -> str:
    """Return the seeds among settings as a text; empty if there are none."""
    return " ".join(f"{key}={setting_text(value)}" for key, value in sorted(settings.items()) if is_seed(key))
