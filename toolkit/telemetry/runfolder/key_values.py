"""The configuration of a run and its evaluations, collected from its records for run.json and lists of runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.manifest import MAX_EVALUATIONS, MAX_NAME_CHARS, Evaluation, Manifest
from toolkit.telemetry.runfolder.metrics import (
    CARRIES_METRICS,
    EPOCH_PREFIX,
    NOT_METRICS,
    TRAIN_LOSSES,
    as_float,
    is_evaluation,
    metric_direction,
)
from toolkit.telemetry.runfolder.portable import pread
from toolkit.telemetry.runfolder.reader import (
    BadLine,
    blocks_of,
    parse_line,
    read_from,
    records_in,
    tail_records,
)
from toolkit.telemetry.runfolder.records import (
    ENVIRONMENT,
    EPOCH,
    NON_FINITE,
    SPREAD,
    START,
    STEP,
    SYSTEM,
    Record,
)
from toolkit.telemetry.runfolder.redone import counts, redone_from, redone_in
from toolkit.telemetry.runfolder.safefile import open_regular
from toolkit.telemetry.runfolder.untrusted import leaves, number_in

Scalar = str | int | float | bool | None

MAX_SETTINGS: Final = 300
MAX_VALUE_CHARS: Final = 300

OF_THE_PROCESS: Final = frozenset(
    "event time elapsed seq session rank run_name run_id host os python packages cpu memory_gb accelerators "
    "cuda cudnn driver determinism seeds packages_left_out code_files "
    "command_line pid boot_id process_started session_tag config environment cut unanswered unencodable".split()
)
"""Fields of a start record that say where it ran, not how it was configured."""
_NO_SETTING: Final = OF_THE_PROCESS | {"perf_tag", "usage_reports", "first_step", "resumed_from_step", "name"}

USUAL_NAMES: Final = {
    name: usual
    for usual, names in {
        "learning_rate": "lr learningrate base_lr max_lr",
        "unet_learning_rate": "unet_lr",
        "text_encoder_learning_rate": "text_encoder_lr",
        "batch_size": "bs batch batchsize train_batch_size per_device_train_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation grad_accum",
        "lora_rank": "rank r lora_r network_dim linear",
        "lora_alpha": "linear_alpha network_alpha",
        "max_steps": "steps num_steps total_steps max_train_steps",
        "epochs": "num_train_epochs num_epochs max_epochs",
        "optimizer": "optim optimizer_type",
        "scheduler": "lr_scheduler lr_scheduler_type",
        "warmup_steps": "lr_warmup_steps num_warmup_steps",
        "seed": "random_seed",
        "model": "name_or_path model_name model_name_or_path base_model pretrained_model_name_or_path",
    }.items()
    for name in names.split()
}
"""The names that frameworks give the settings that most runs have."""

_USUAL: Final = frozenset(
    {*USUAL_NAMES, *USUAL_NAMES.values(), "weight_decay", "dropout", "dtype", "max_grad_norm"}
)
_BLOCKS: Final = frozenset(
    "config process train training network model args arguments hparams params parameters optim optimizer lora".split()
)
"""Parts of a configuration in which `lr` or `rank` means the run's own."""
_NO_SETTINGS: Final = frozenset(
    "name run_name job meta telemetry tags run_id log_dir output_dir logging_dir training_folder".split()
)
_NUMBERS: Final = frozenset(
    "learning_rate batch_size lora_rank lora_alpha max_steps epochs seed warmup_steps weight_decay dropout".split()
)
_MAX_DEPTH: Final = 8
_MAX_SHAPES: Final = 256
_FARTHEST: Final = 2**53
_LARGEST: Final = 1e308
_HEAD_BYTES: Final = 256 * 1024
_TAIL_BYTES: Final = 64 * 1024
_MOST_COUNTED_BYTES: Final = 64 * 1024 * 1024
_MOST_KNOWN: Final = 20_000
_READ_AGAIN_S: Final = 60.0


class KeyValues:
    """The configuration and the evaluations of the records taken so far. One thread takes, any thread may read."""

    def __init__(
        self,
        config: Mapping[str, Scalar] | None = None,
        evaluations: Mapping[str, Evaluation] | None = None,
    ) -> None:
        self.config: Mapping[str, Scalar] | None = config
        """None before the first start record."""
        # Plain tuples: making a dataclass for each record would take most of the time.
        self._evaluations = {
            name: (item.last, item.last_step, item.best, item.best_step, item.direction)
            for name, item in (evaluations or {}).items()
        }
        self._shapes: dict[tuple[Any, ...], tuple[tuple[str, str], ...]] = {}
        self._step: int | None = None

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluations so far, by the name of the metric as charts call it."""
        return {
            name: Evaluation(
                last=last, last_step=last_step, best=best, best_step=best_step, direction=direction
            )
            for name, (last, last_step, best, best_step, direction) in list(self._evaluations.items())
        }

    def take(self, records: Iterable[Record]) -> None:
        """Take the next records of the run."""
        for record in records:
            event = record.get("event")
            if event in (START, ENVIRONMENT):
                self.config = {**(self.config or {}), **settings_of(record)}
            elif event in CARRIES_METRICS and event != SYSTEM:
                self._take_metrics(event, record)

    def take_points(
        self, name: str, event: str, steps: Sequence[int | None], values: Sequence[float]
    ) -> None:
        """Take points of one metric of a record of kind `event`."""
        name = f"{EPOCH_PREFIX}{name}" if event == EPOCH else name
        if event != SYSTEM and is_evaluation(name.removeprefix(EPOCH_PREFIX), event=event):
            for step, value in zip(steps, values, strict=True):
                self._add(name, value, step)

    def forget_best(self, names: Iterable[str]) -> None:
        """Forget the best values of metrics whose records were not all taken."""
        for name in names:
            last, last_step, _, _, direction = self._evaluations[name]
            self._evaluations[name] = (last, last_step, None, None, direction)

    def _take_metrics(self, event: str, record: Record) -> None:
        step = record.get("global_step")
        if type(step) is int and -_FARTHEST < step < _FARTHEST:
            self._step = step
        fields = self._fields(event, record)
        if not fields:
            return
        if NON_FINITE in record:
            record = with_non_finite(record)
        for field, name in fields:
            value = record[field]
            if type(value) is float or type(value) is int:
                self._add(name, as_float(value), self._step)

    def _fields(self, event: str, record: Record) -> tuple[tuple[str, str], ...]:
        """Return the fields of `record` that are evaluations, each with the name of its metric."""
        shape = (event, *record)
        fields = self._shapes.get(shape)
        if fields is None:
            fields = tuple(_evaluations_in(event, record))
            if len(self._shapes) < _MAX_SHAPES:
                self._shapes[shape] = fields
        return fields

    def _add(self, name: str, value: float, step: int | None) -> None:
        known = self._evaluations.get(name)
        if known is None:
            if len(self._evaluations) >= MAX_EVALUATIONS:
                return
            known = (value, step, None, None, metric_direction(name))
        _, _, best, best_step, direction = known
        if direction is not None and math.isfinite(value):
            is_better = best is None or (value < best if direction == "min" else value > best)
            best, best_step = (value, step) if is_better else (best, best_step)
        self._evaluations[name] = (value, step, best, best_step, direction)


def _evaluations_in(event: str, record: Record) -> Iterator[tuple[str, str]]:
    """Yield the fields of `record` that are evaluations, each with the name of its metric."""
    prefix = EPOCH_PREFIX if event == EPOCH else ""
    for field in record:
        if field in NOT_METRICS or field == NON_FINITE or len(field) > MAX_NAME_CHARS:
            continue
        is_spread = event == STEP and field.endswith(SPREAD) and field.rpartition("_")[0] in record
        if not is_spread and is_evaluation(field, event=event):
            yield field, prefix + field


# ------------------------------------------------------------ configuration


def config_of(start: Record) -> dict[str, Any]:
    """Return the configuration in a start record as it is: the derived fields, and what the caller gave."""
    given = start.get("config")
    derived = {name: value for name, value in start.items() if name not in OF_THE_PROCESS}
    return {**derived, **(given if isinstance(given, Mapping) else {})}


def settings_of(start: Record) -> dict[str, Scalar]:
    """Return the configuration in a start record in one level: usual names, scalars only, bounded."""
    return settings_from(
        {name: value for name, value in start.items() if name not in _NO_SETTING}, start.get("config")
    )


def configured(start: Record) -> dict[str, Scalar]:
    """Return the settings of a start record; what was configured counts before what was measured, such as the rate."""
    return {**settings_of(start), **settings_from({}, start.get("config"))}


def settings_from(known: Mapping[str, Any], given: Any = None) -> dict[str, Scalar]:
    """Return settings in one level: first `known` ones, then those of the nested configuration `given`.

    Names are joined by dots, without the parts that every setting of a file has. Well-known ones get their usual name:
    `lr` becomes `learning_rate`. Lists, names and paths of the run itself are left out.
    """
    found: dict[str, Scalar] = {}
    for name, value in known.items():
        _put(found, _usual_name([str(name)]), value)
    for path, value in islice(leaves(given, depth=_MAX_DEPTH, items=_with_mappings), 10 * MAX_SETTINGS):
        parts = _without_numbers(path)
        if not parts or parts[-1] in _NO_SETTINGS or _NO_SETTINGS & set(parts[:1]):
            continue
        usual = _usual_name(parts)
        last = USUAL_NAMES.get(parts[-1].lower(), parts[-1])
        if found.get(last) == value or (last in found and found[last] == _typed(last, value)):
            # The start record has it under its usual name.
            continue
        _put(found, usual if usual not in found else ".".join(parts), value)
    return found


def given_names(given: Any) -> dict[str, str]:
    """Return by the usual names that `settings_from` uses the names that the configuration `given` has instead."""
    found: dict[str, str] = {}
    for path, _ in islice(leaves(given, depth=_MAX_DEPTH, items=_with_mappings), 10 * MAX_SETTINGS):
        parts = _without_numbers(path)
        if parts and _usual_name(parts) != ".".join(parts):
            found.setdefault(_usual_name(parts), ".".join(parts))
    return found


def _put(found: dict[str, Scalar], name: str, value: Any) -> None:
    value = _typed(name, value)
    is_number = type(value) is int or type(value) is float
    if type(value) is str:
        value = value if len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - 1] + "…"
    elif not (value is None or type(value) is bool or (is_number and -_LARGEST < value < _LARGEST)):
        return
    if (
        value is not None
        and name not in found
        and len(found) < MAX_SETTINGS
        and 0 < len(name) <= MAX_NAME_CHARS
    ):
        found[name] = value


def _typed(name: str, value: Any) -> Any:
    if name not in _NUMBERS or type(value) is not str:
        return value
    # YAML takes 2e-3 for a text.
    try:
        number = float(value)
    except ValueError:
        return value
    return int(value) if value.strip().lstrip("+-").isdecimal() and len(value) < 19 else number


def _usual_name(parts: Sequence[str]) -> str:
    last = parts[-1].lower()
    if last in _USUAL and all(part.lower() in _BLOCKS for part in parts[:-1]):
        return USUAL_NAMES.get(last, last)
    return ".".join(parts)


def _without_numbers(path: Sequence[str | int]) -> list[str]:
    """Return a path without `config.process.0.`, which every setting of a training file begins with."""
    parts = [str(part) for part in path]
    while parts and (parts[0] in ("config", "process") or parts[0].isdecimal()) and len(parts) > 1:
        del parts[0]
    return parts


def _with_mappings(items: Sequence[Any]) -> Sequence[Any]:
    return items[:100] if any(isinstance(item, Mapping) for item in items[:100]) else ()


# ------------------------------------------------------------ from a record file


def key_values_in(log: Path) -> KeyValues:
    """Return the configuration and the evaluations in a record file.

    What a later session did again does not count. Of a very long file only the start and the end are read: the best
    values are then unknown.

    Raises:
        OSError: it cannot be read.
    """
    if os.lstat(log).st_size <= _MOST_COUNTED_BYTES:
        return _all_in(log, redone_in(log).limits)
    found, tail = KeyValues(), tail_records(log, _TAIL_BYTES)
    head = read_from(log, max_bytes=_HEAD_BYTES).records
    found.take(record for record in head if record.get("event") in (START, ENVIRONMENT))
    found.take(_that_count(tail, redone_from(tail)))
    found.forget_best(found.evaluations)
    return found


class ValuesThatCount:
    """What run.json of some runs does not say, read once from their records.

    Without a configuration in it, these are configuration and evaluations; of a resumed run its evaluations, without
    steps that it did again.
    """

    def __init__(self) -> None:
        self._found: dict[Path, tuple[tuple[int, ...], float, KeyValues | None]] = {}

    def read(self, log: Path, manifest: Manifest | None, until: float = math.inf) -> KeyValues | None:
        """Return what is in `log` in place of what `manifest` says; None if that counts.

        It is read before `until`, a monotonic time, and once a minute while the run lives: then it always changes.
        """
        has_ended = (
            manifest is not None and manifest.latest is not None and manifest.latest.status != "running"
        )
        is_known = manifest is not None and manifest.config is not None
        if manifest is not None and is_known:
            is_resumed = manifest.latest is not None and manifest.latest.session > 1
            if not (is_resumed and manifest.evaluations):
                return None
        known, now_s = self._found.get(log), time.monotonic()
        if (known is None or has_ended or now_s > known[1]) and now_s < until:
            with suppress(OSError):
                status = os.lstat(log)
                signature = (status.st_mtime_ns, status.st_size, status.st_ino)
                if known is None or known[0] != signature:
                    if len(self._found) >= _MOST_KNOWN:
                        self._found.clear()
                    read = (
                        _redone_values_in(log, manifest.evaluations)
                        if manifest is not None and is_known
                        else key_values_in(log)
                    )
                    known = self._found[log] = (signature, now_s + _READ_AGAIN_S, read)
        return None if known is None else known[2]


def _redone_values_in(log: Path, known: Mapping[str, Evaluation]) -> KeyValues | None:
    """Return what is in a record file without steps that a later session did again.

    None if none of the `known` evaluations is of such a step. Of a very long file the best one is then unknown.
    """
    redone = redone_in(log)
    limits, may_have = redone.limits, redone.may_have
    if not any(may_have(item.best_step) or may_have(item.last_step) for item in known.values()):
        return None
    if os.lstat(log).st_size <= _MOST_COUNTED_BYTES:
        return _all_in(log, limits)
    found = KeyValues(None, known)
    found.forget_best([name for name, item in known.items() if may_have(item.best_step)])
    return found


def _all_in(log: Path, limits: Mapping[int, int]) -> KeyValues:
    found = KeyValues()
    for block in blocks_of(log):
        found.take(_that_count(records_in(block)[0], limits))
    return found


def _that_count(records: Iterable[Record], limits: Mapping[int, int]) -> Iterable[Record]:
    return [record for record in records if counts(record, limits)] if limits else records


_SAMPLE_BYTES: Final = 8 * 1024
_STEP_LINES: Final = (b'{"event":"step"', b'{"event": "step"')
"""How a step record starts: ours, and one written by Python's json module."""
_LOSSES: Final = ("train_loss_mean", *TRAIN_LOSSES)


def trend_of(log: Path, points: int) -> list[float]:
    """Return losses at about `points` positions of `log`, for a rough shape, reading a few kilobytes at each."""
    descriptor = open_regular(log)
    try:
        size = os.fstat(descriptor).st_size
        if size <= points * _SAMPLE_BYTES:
            found = [*map(_loss_on, pread(descriptor, size, 0).split(b"\n"))]
        else:
            places = [place * (size - _SAMPLE_BYTES) // max(1, points - 1) for place in range(points)]
            blocks = [pread(descriptor, _SAMPLE_BYTES, place).split(b"\n")[1:-1] for place in places]
            found = [
                next((loss for line in block if (loss := _loss_on(line)) is not None), None)
                for block in blocks
            ]
    finally:
        os.close(descriptor)
    losses = [loss for loss in found if loss is not None]
    if len(losses) <= points:
        return losses
    return [losses[i * (len(losses) - 1) // max(1, points - 1)] for i in range(points)]


def _loss_on(line: bytes) -> float | None:
    if not line.startswith(_STEP_LINES):
        return None
    record = parse_line(0, line)
    if isinstance(record, BadLine) or record.get("event") != STEP:
        return None
    return next((number for name in _LOSSES if (number := number_in(record.get(name))) is not None), None)
