"""What a run has reached and how it was made, and which runs repeat each other: all but the seed is recorded alike."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Final

from toolkit.telemetry.diagnostics.metric_aliases import LR, signal_of
from toolkit.telemetry.runfolder.evidence.code_snapshot import read_code
from toolkit.telemetry.runfolder.folder_list import Signature, signature_of
from toolkit.telemetry.runfolder.layout import CODE, METRICS_JSONL
from toolkit.telemetry.runfolder.metrics import OF_THE_MACHINE, metric_direction, metrics_of
from toolkit.telemetry.runfolder.node_folders import head_of
from toolkit.telemetry.runfolder.reader import read_from, tail_records
from toolkit.telemetry.runfolder.records import STEP, Record
from toolkit.telemetry.runfolder.status import FINISHED
from toolkit.telemetry.runs.settings import as_number, is_label, is_seed, level_text, seed_text
from toolkit.telemetry.runs.store import RunCard

_HEAD_BYTES: Final = 512 * 1024
"""Of the beginning of a log: some thousand steps, by which most warm-ups of the learning rate are over."""
_END_BYTES: Final = 64 * 1024
_LOGGED: Final = "logged."
_ON_COMMAND_LINE: Final = "command line."
_CODE: Final = "code"
_OPTION: Final = re.compile(r"(?P<dashes>-{0,2})(?P<name>[^\W\d][\w.\-/]*)(=(?P<value>.*))?", re.DOTALL)
_SETTINGS_FILE: Final = re.compile(r"\.(ya?ml|json|toml|ini|cfg|conf|py)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run has reached in the metric."""

    key: str
    name: str
    place: str = ""
    value: float | None = None
    """Its last value; None if it has none."""
    step: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of its configuration, the options of its command line, and what it logged as a constant."""
    code: str = ""
    """A text that is equal for equal code; empty where that is not known."""
    created: float | None = None
    is_live: bool = False
    is_finished: bool = True
    is_cut: bool = False
    """Whether records of it are missing."""
    progress: float | None = None

    @property
    def seed(self) -> str:
        """Its seeds as a text; empty if unknown."""
        return seed_text(self.settings)


def result_of(card: RunCard, metric: str, *, value: float | None = None, reads_folder: bool = True) -> Result:
    """Return what a listed run has reached; its command line, constants and code are in its folder.

    `value` is its last one of a metric that is not among its evaluations.
    """
    reached = card.evaluations.get(metric)
    folder = card.path if reads_folder and card.logged_by is None else None
    recorded = {} if folder is None else _recorded(folder, signature_of(folder / METRICS_JSONL))
    return Result(
        key=f"{card.place} {card.id}",
        name=card.name,
        place=card.place,
        value=value if reached is None else reached.last,
        step=card.step if reached is None or reached.last_step is None else reached.last_step,
        settings={**card.config, **recorded},
        code="" if folder is None else _code_at(folder, signature_of(folder / CODE)),
        created=card.created,
        is_live=card.live,
        is_finished=card.status.name == FINISHED,
        is_cut=card.is_cut,
        progress=card.progress,
    )


@lru_cache(maxsize=4096)
def _code_at(folder: Path, _signature: Signature) -> str:
    kept = read_code(folder)
    newest = kept[max(kept)] if kept else None
    texts = [] if newest is None else [(name, newest.text(name)) for name in sorted(newest.files)]
    return hashlib.sha256(repr(texts).encode("utf-8", "surrogatepass")).hexdigest() if texts else ""


@lru_cache(maxsize=4096)
def _recorded(folder: Path, signature: Signature) -> Mapping[str, Any]:
    """Return the options of a run's command line and the constants that it logged, by reading both ends of its log.

    A number that it logged with several values is None, except for a learning rate: there the highest one counts, as
    that of a schedule is the same at the end of each. One that still rises where the beginning was cut is None, too:
    its highest value was not read.
    """
    if not signature:
        return {}
    log = folder / METRICS_JSONL
    try:
        head, end = read_from(log, max_bytes=_HEAD_BYTES), tail_records(log, _END_BYTES)
        # A start on many ranks may know its command line only after thousands of steps.
        line = _command_line(head.records) or _command_line([head_of(log, 1), *end])
    except OSError:
        return {}
    begun, ended = _logged(head.records), _logged(end)
    constants: dict[str, float | None] = {}
    for name in begun | ended:
        first = begun.get(name, [])
        values = [*first, *ended.get(name, [])]
        rises = head.pending_bytes and max(values) > max(first[: len(first) * 7 // 8], default=-math.inf)
        is_known = len(set(values)) == 1 or (signal_of(name) == LR and not rises)
        constants[_LOGGED + name] = max(values) if is_known else None
    return {**constants, **{_ON_COMMAND_LINE + name: value for name, value in _options(line)}}


def _command_line(records: Sequence[Record]) -> list[str]:
    lines = (record["command_line"] for record in records if isinstance(record.get("command_line"), list))
    return list(map(str, next(lines, [])))


def _logged(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return the values of each number of steps that may be a setting: no measurement of the model or the machine."""
    found: dict[str, list[float]] = {}
    for record in records:
        for name, value in metrics_of(record) if record.get("event") == STEP else ():
            if metric_direction(name) is None and not name.startswith(OF_THE_MACHINE):
                found.setdefault(name, []).append(value)
    return found


def options_of(line: Any) -> dict[str, str]:
    """Return the options of a command line as a start record has it, without paths and arguments that have no name."""
    given = _options(list(map(str, line))) if isinstance(line, list) else ()
    return {name: value for name, value in given if not name.startswith("argument ")}


def _options(line: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command line, `--name value`, `--name=value` or `name=value`, and the other arguments.

    Paths are left out: they say where a run writes and reads. Of a file of settings or a script, its name counts.
    """
    waiting = ""
    for at, part in enumerate(line):
        found = _OPTION.fullmatch(part)
        if found and (found["dashes"] or found["value"] is not None):
            if waiting:
                yield waiting, "given"
            waiting, value = found["name"].replace("-", "_"), found["value"]
            if value is None:
                continue
        else:
            value = part
        if _SETTINGS_FILE.search(value) or not re.search(r"[/\\]", value):
            yield waiting or f"argument {at}", PurePath(value.replace("\\", "/")).name or value
        waiting = ""
    if waiting:
        yield waiting, "given"


def _kind(name: str) -> str:
    """Return where a setting is recorded: each of these a run has, or has not."""
    return next((kind for kind in (_LOGGED, _ON_COMMAND_LINE, _CODE) if name.startswith(kind)), "")


def setting_name(name: str) -> str:
    """Return what a setting of a `Result` is called."""
    return name.removeprefix(_LOGGED).removeprefix(_ON_COMMAND_LINE)


def compared_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that repeated runs have in common: all but labels and the seed."""
    return {
        name: level_text(value)
        for name, value in settings.items()
        if not is_label(name) and not is_seed(name)
    }


def made_by(runs: Sequence[Result]) -> dict[str, dict[str, str]]:
    """Return how each run was made, by its key, as far as repeated runs have it in common.

    What was logged counts if it is constant in every run that logged it: else it is a measurement.
    """
    measured = {
        name
        for run in runs
        for name, value in run.settings.items()
        if name.startswith(_LOGGED) and as_number(value) is None
    }
    return {
        run.key: {
            name: text for name, text in compared_settings(run.settings).items() if name not in measured
        }
        | ({_CODE: run.code} if run.code else {})
        for run in runs
    }


def groups_of(runs: Sequence[Result]) -> dict[str, str]:
    """Return the group of each run, by its key: runs of one group differ in nothing that was recorded but the seed.

    Of two runs that were made alike with the same seed, one had other code, unless both kept the same code. What was
    logged is not enough to call two runs alike.
    """
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    made = made_by(runs)
    for run in sorted(runs, key=lambda run: math.inf if run.created is None else run.created):
        same = json.dumps(made[run.key], sort_keys=True)
        is_known = any(not name.startswith(_LOGGED) for name in made[run.key])
        found[run.key] = f"{same} {0 if run.code else seen[same, run.seed]}" if is_known else run.key
        seen[same, run.seed] += 1
    return found


def differing(new: Sequence[Result], best: Sequence[Result]) -> list[str]:
    """Return what differs between two groups as they were recorded, in words."""
    made = made_by([*new, *best])
    sides = [[made[run.key] for run in group] for group in (new, best)]
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for side in sides for one in side for name in one):
        # What a run did not record at all, it does not differ in.
        texts = [
            sorted({one.get(name, "not set") for one in side if _kind(name) in map(_kind, one)})
            for side in sides
        ]
        if all(texts) and texts[0] != texts[1]:
            a, b = (" or ".join(map(_shown, each[:3])) for each in texts)
            found[setting_name(name)] = name if name == _CODE else f"{setting_name(name)} {a} against {b}"
    return list(found.values())


def _shown(text: str) -> str:
    """Return a value as people write it: whole numbers without a fraction."""
    number = as_number(text)
    return text if number is None or not number.is_integer() or abs(number) > 1e15 else f"{number:.0f}"
