"""The training loss of a run: which of its metrics that is, and its last value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.diagnostics.metric_aliases import LOSS, VAL_LOSS, signal_of
from toolkit.runfolder.codec import with_non_finite
from toolkit.runfolder.manifest import Evaluation
from toolkit.runfolder.metrics import TRAIN_LOSSES, is_evaluation, metrics_of
from toolkit.runfolder.reader import Cursor, read_from, tail_records
from toolkit.runfolder.records import SYSTEM, Record
from toolkit.runfolder.untrusted import is_number

_ORDER: Final = {name: at for at, name in enumerate(TRAIN_LOSSES)}


def loss_name(names: Iterable[str]) -> str | None:
    """Return which of the metrics is the training loss; None if none is."""
    ranked = []
    for at, name in enumerate(names):
        lower = name.lower()
        if name in _ORDER:
            ranked.append((0, _ORDER[name], name))
        elif signal_of(name) == LOSS:
            ranked.append((1, at, name))
        elif "loss" in lower and signal_of(name) != VAL_LOSS and not is_evaluation(name):
            ranked.append((2 if lower.endswith("loss") else 3, at, name))
    return min(ranked)[2] if ranked else None


def known_values(summary: Mapping[str, Any], evaluations: Mapping[str, Evaluation]) -> dict[str, float]:
    """Return the last values in a run.json; the summary has those of the last step alone, maybe without the loss."""
    found = {name: item.last for name, item in evaluations.items()}
    for name, value in with_non_finite(dict(summary)).items():
        if value is None and name == "train_loss":
            # JSON has no NaN.
            found[name] = float("nan")
        elif is_number(value):
            found[name] = float(value)
    return found


def last_values(log: Path, within_bytes: int = 64 * 1024) -> dict[str, float]:
    """Return the last value of each metric in the records at the end of `log`.

    Raises:
        OSError: it cannot be read.
    """
    return _last_in(tail_records(log, within_bytes))


def last_value(log: Path, name: str) -> float | None:
    """Return the last value of one metric, from as many of the records as that takes; None if none has it.

    Raises:
        OSError: `log` cannot be read.
    """
    found = last_values(log)
    if name in found:
        return found[name]
    cursor = Cursor()
    while (chunk := read_from(log, cursor)).cursor != cursor:
        cursor = chunk.cursor
        found.update(_last_in(chunk.records))
    return found.get(name)


def _last_in(records: Iterable[Record]) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in records:
        if record.get("event") != SYSTEM:
            found.update(metrics_of(record))
    return found
