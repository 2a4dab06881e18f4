"""A configuration for people: what matters first, lists in one row, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolkit.telemetry.runfolder.key_values import USUAL_NAMES, settings_of
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.listing.config_diff import flatten
from toolkit.telemetry.runs.settings import setting_text

_FIRST: Final = {
    "Learning rate": "learning_rate",
    "Rank": "lora_rank",
    "Batch size": "batch_size",
    "Steps": "max_steps",
    "Seed": "seed",
    "Model": "model",
    "Optimizer": "optimizer",
}
"""What people look for first, by its usual name."""
_IDENTITY: Final = frozenset({"run_name", "run_id", "session_tag"})
"""What tells runs apart by design, so that it is no setting."""
_LAST: Final = re.compile(r"(?:\[\d+\])+$")
_SHOWN_ITEMS: Final = 6
_MAX_VALUE: Final = 80


def summary(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return label and value of the settings that people look for first, as far as the configuration has them."""
    found = settings_of(dict(config))
    shown = {label: found[name] for label, name in _FIRST.items() if name in found}
    return [
        (label, _shown(label, value))
        for label, value in shown.items()
        if label in ("Model", "Optimizer") or is_number(value)
    ]


def rows(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration on one level, with a list of plain values as one value and without repeated settings.

    The names of the run come last.
    """
    flat = flatten(fold_lists(config))
    top = {key: value for key, value in flat.items() if not key.startswith("config.")}
    kept = {key: value for key, value in flat.items() if key in top or not _repeats(key, value, top)}
    return dict(sorted(kept.items(), key=lambda item: item[0] in _IDENTITY))


def fold_lists(value: Any) -> Any:
    """Return `value` with each list of more than one plain value as one text."""
    if isinstance(value, Mapping):
        return {key: fold_lists(inner) for key, inner in value.items()}
    if isinstance(value, list):
        if len(value) < 2 or any(isinstance(item, (dict, list)) for item in value):
            return [fold_lists(item) for item in value]
        shown = ", ".join(str(item) for item in value[:_SHOWN_ITEMS])
        more = len(value) - _SHOWN_ITEMS
        return f"{shown}, … ({len(value)} values)" if more > 0 else shown
    return value


def _repeats(key: str, value: Any, top: Mapping[str, Any]) -> bool:
    name = _LAST.sub("", key).rpartition(".")[2]
    usual = USUAL_NAMES.get(name, name)
    return any(USUAL_NAMES.get(other, other) == usual and value == same for other, same in top.items())


def _shown(label: str, value: Any) -> str:
    if isinstance(value, int) and label != "Seed":
        return f"{value:,d}"
    text = clean(setting_text(value))
    # The end of a path says more than its start.
    return text if len(text) <= _MAX_VALUE else f"…{text[-_MAX_VALUE:]}"
