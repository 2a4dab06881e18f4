"""What the start records of a run say: its training settings, its command line, and where it saves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.runfolder.key_values import OF_THE_PROCESS
from toolkit.telemetry.runfolder.records import ENVIRONMENT, START
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.runs.listing.config_diff import flatten
from toolkit.telemetry.runs.settings import setting_text
from toolkit.telemetry.runs.store import MOST_STARTS, RunStore, of_newest_session

_MAX_TEXT: Final = 60

CLIPPING: Final = tuple(
    "max_grad_norm grad_clip clip_grad_norm gradient_clip_val gradient_clipping clip_grad".split()
)
"""The names of the largest norm of gradients."""

# Label, and the names that trainers use for it, the usual one first.
_SETTINGS: Final = (
    ("learning rate", ("learning_rate", "lr")),
    ("warm-up", ("warmup_steps", "lr_warmup_steps", "num_warmup_steps", "warmup", "warmup_ratio")),
    ("gradient clipping", CLIPPING),
    ("optimizer", ("optimizer", "optim", "optimizer_type")),
    ("schedule", ("scheduler", "lr_scheduler", "lr_scheduler_type")),
)
_SAID_IF_MISSING: Final = frozenset({"warm-up", "gradient clipping"})


def start_of(store: RunStore, key: str) -> dict[str, Any]:
    """Return the fields of the newest session's start and environment records, the newest record of a field first.

    A trainer writes one when the process starts, one when the model is loaded, and one once the machine is known.
    """
    newest = of_newest_session(store.events(key, (START, ENVIRONMENT), limit=MOST_STARTS))
    return {**store.meta(key).start, **newest}


def training_settings(start: Mapping[str, Any]) -> list[str]:
    """Return learning rate, warm-up and clipping as configured, each as "name value"; empty if nothing is known."""
    values = _flat(start)
    found = []
    for label, names in _SETTINGS:
        name = next((name for name in names if name in values), None)
        if name is not None:
            found.append(f"{label} {_text(name, values[name])}")
        elif label in _SAID_IF_MISSING and isinstance(start.get("config"), Mapping):
            found.append(f"no {label} in the configuration")
    # Alone, what is missing says nothing.
    return found if any(not text.startswith("no ") for text in found) else []


def config_value(start: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these settings that a start record or its configuration has; None if none."""
    values = _flat(start)
    return next((values[name] for name in names if name in values), None)


def _flat(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return every value under the last part of its name; those of the record itself, and outer ones, come first."""
    found: dict[str, Any] = {}
    # The accelerators have a name and a type, too.
    flat = flatten({name: start[name] for name in start if name == "config" or name not in OF_THE_PROCESS})
    for key in sorted(flat, key=lambda key: (key.startswith("config."), key.count("."))):
        if flat[key] is not None and not key.endswith("]"):
            found.setdefault(re.split(r"[./]", key)[-1], flat[key])
    return found


def _text(name: str, value: Any) -> str:
    if is_number(value) and "warmup" in name and "ratio" not in name and value == int(value):
        return f"{int(value):,} steps"
    return setting_text(value)[:_MAX_TEXT]
