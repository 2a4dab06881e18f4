"""What a list says of a run, for folders and for the engine: from run.json, else from its first and last records."""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.folder_list import Signature, signature_of
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.key_values import KeyValues
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import Evaluation, Heartbeat, Manifest, evaluations_from
from toolkit.telemetry.runfolder.metrics import TRAIN_LOSSES, VAL_LOSSES, is_evaluation, metrics_of
from toolkit.telemetry.runfolder.reader import last_seq, last_step, read_from, tail_records
from toolkit.telemetry.runfolder.records import FIRST_STEP, STEP, SYSTEM, Record, steps_done
from toolkit.telemetry.runfolder.redone import counts, redone_from
from toolkit.telemetry.runfolder.status import LOST, RUNNING, STALLED, Status, work_out_status
from toolkit.telemetry.runfolder.untrusted import clean, is_number, mapping_in, number_in, texts_in

_MAX_SESSIONS: Final = 1_000_000
_MAX_CAUGHT_UP: Final = 20_000
_HEAD_BYTES: Final = 128 * 1024
_END_BYTES: Final = 64 * 1024
_LATEST_TIME: Final = 4e9
"""Seconds since 1970, in about a century: anything later is not a time."""

Fields = dict[str, Any]
"""Fields of a RunCard, by name."""
MISSING: Final = "missing"
"""Among the fields: which records are missing, as `missing_records` says it."""

_caught_up: dict[Path, tuple[Manifest, Signature, Manifest]] = {}
"""By record file: those of killed runs are not read at every scan."""


def settled(
    manifest: Manifest, folder: Path, now: float, *, last_sign: float | None = None
) -> tuple[Manifest, Status]:
    """Return the manifest, with end and last numbers from the records if run.json was not updated, and the status."""
    status = work_out_status(manifest, now, last_sign=last_sign)
    if status.name in (LOST, STALLED) and (ended := _ended(manifest, folder)) is not manifest:
        return ended, work_out_status(ended, now, last_sign=last_sign)
    return manifest, status


def _ended(manifest: Manifest, folder: Path) -> Manifest:
    log = folder / METRICS_JSONL
    signature = signature_of(log)
    if not signature:
        return manifest
    known = _caught_up.get(log)
    if known is None or known[0] is not manifest or known[1] != signature:
        if len(_caught_up) >= _MAX_CAUGHT_UP:
            _caught_up.clear()
        known = _caught_up[log] = (manifest, signature, with_end_record(manifest, folder))
    return known[2]


def missing_records(manifest: Manifest, folder: Path, status: Status | None = None) -> str | None:
    """Return that records of a run that is over are missing: its file ends before the last one that run.json counts.

    None if none is missing, or if they may still come: from the run itself, or from its journal. `status` is the run's,
    if it is known.
    """
    beat, session, log = manifest.heartbeat, manifest.latest, folder / METRICS_JSONL
    if beat is None or session is None or manifest.part_of is not None:
        return None
    if (status or settled(manifest, folder, time.time())[1]).name in (RUNNING, STALLED):
        return None
    try:
        signature = signature_of(log)
        if signature and (
            session.record_bytes is not None
            and session.status != RUNNING
            and signature[1] >= session.record_bytes
        ):
            # A list of many runs does not read the records of each.
            return None
        last = _last_seq(log, signature)
    except OSError:
        return None
    missing = beat.seq - last
    if missing <= 0 or (session.journal is not None and os.path.lexists(session.journal)):
        return None
    return (
        f"{missing:,} of {beat.seq + 1:,} records are missing: "
        f"{METRICS_JSONL} ends before the last one that {MANIFEST} counts"
    )


@functools.lru_cache(maxsize=4_096)
def _last_seq(log: Path, signature: Signature) -> int:  # noqa: ARG001 - one answer for each content
    return last_seq(log)


def fields_of(
    manifest: Manifest,
    folder: Path,
    status: Status,
    now: float,
    *,
    key_values: KeyValues | None = None,
    newest: tuple[float, int | None] | None = None,
) -> Fields:
    """Return what the settled manifest says, and the records where it does not.

    `key_values` are configuration and evaluations if run.json has none, or evaluations that count where it has others;
    `newest` is time and step of the last record.
    """
    beat = manifest.heartbeat
    if newest is None and status.name == RUNNING and (beat or Heartbeat(time=0)).global_step is None:
        # Until its first heartbeat with a step, only its records say whether it has made one.
        with suppress(OSError):
            newest = (0.0, last_step(folder / METRICS_JSONL))
    step = beat.global_step if beat is not None else None
    if newest is not None and newest[1] is not None and (step is None or newest[1] > step):
        step = newest[1]
    config = (manifest.config if manifest.config is not None else key_values and key_values.config) or {}
    # Not both: run.json also has evaluations of steps that a resume did again.
    evaluations = manifest.evaluations if key_values is None else key_values.evaluations
    summary, latest = manifest.summary, manifest.latest
    values: Mapping[str, float] = known_values(summary, evaluations)
    loss_metric = loss_name(values)
    if loss_metric is None and step is not None:
        values = values_at_the_end(folder)
        loss_metric = loss_name(values)
    # Of the newest session: those before may be by the clock of another node.
    signs = [latest.ended or latest.started] if latest is not None else []
    if beat is not None:
        signs.append(beat.time)
    if newest is not None:
        signs.append(newest[0])
    return {
        "id": clean(manifest.run_id),
        "name": clean(manifest.display_name),
        "tags": tuple(clean(tag) for tag in manifest.tags),
        "project": clean(manifest.project) if manifest.project else None,
        "created": manifest.created,
        "last_sign": max(signs) if signs else None,
        "duration_s": _duration(manifest, max(signs) if signs else now),
        "step": step,
        "max_steps": _whole(summary.get("max_steps")) or _whole(config.get("max_steps")),
        "from_zero": summary.get(FIRST_STEP) == 0,
        "epoch": number_in(summary.get("epoch")),
        "loss": None if loss_metric is None else values[loss_metric],
        "loss_metric": loss_metric,
        "lr": number_in(summary.get("lr")),
        "samples_per_sec": number_in(summary.get("samples_per_sec")),
        "host": clean(latest.host) if latest else "",
        # A manifest has only the newest sessions; a foreign one may contain any number.
        "sessions": max(len(manifest.sessions), min(latest.session, _MAX_SESSIONS) if latest else 0),
        "summary": summary,
        "config": config,
        "evaluations": evaluations,
    }


def fields_without_manifest(
    folder: Path, ends: Fields, *, key_values: KeyValues | None, written: float | None
) -> Fields:
    """Return what the records of a run say: their `ends`, `key_values`, and when they were last `written`."""
    read = key_values or KeyValues()
    return {
        "name": clean(folder.name),
        "config": read.config or {},
        "evaluations": read.evaluations,
        **ends,
        **({} if written is None else {"last_sign": written}),
    }


_KINDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        ("created", "last_sign", "duration_s", "epoch", "loss", "lr", "samples_per_sec"), (int, float)
    ),
    **dict.fromkeys(("step", "max_steps", "sessions"), int),
    **dict.fromkeys(("id", "name", "host", "project", "loss_metric", MISSING), str),
    "from_zero": bool,
    "summary": dict,
}


def encode_fields(fields: Fields) -> bytes:
    """Return the fields as JSON, with NaN and infinity as Python writes them."""
    evaluations = {name: item._asdict() for name, item in fields["evaluations"].items()}
    return json.dumps({**fields, "evaluations": evaluations}).encode()


def decode_fields(data: bytes) -> Fields:
    """Return the fields in `data`, which anyone may have written: what is not of its type is left out."""
    try:
        found = mapping_in(json.loads(data))
    except (ValueError, RecursionError):
        found = {}
    config = mapping_in(found.get("config"))
    return {
        "name": "",
        "step": None,
        "last_sign": None,
        "duration_s": None,
        **{name: found[name] for name, kind in _KINDS.items() if isinstance(found.get(name), kind)},
        "tags": tuple(texts_in(found.get("tags"))),
        "config": {name: value for name, value in config.items() if isinstance(value, (str, int, float))},
        "evaluations": evaluations_from(found.get("evaluations")),
    }


def progress_of(step: int | None, max_steps: int | None, *, from_zero: bool) -> float | None:
    """Return the fraction of steps done, if the total is known."""
    if not max_steps or step is None:
        return None
    return min(1.0, max(0.0, steps_done(step, from_zero=from_zero) / max_steps))


def _duration(manifest: Manifest, last_sign: float) -> float:
    whole = 0.0
    # The end of a killed session is unknown, but it was before the next one started.
    limits = [*(session.started for session in manifest.sessions[1:]), last_sign]
    for session, limit in zip(manifest.sessions, limits, strict=False):
        ended = session.ended if session.ended is not None else limit
        whole += max(0.0, ended - session.started)
    return whole


def values_at_the_end(folder: Path) -> Mapping[str, float]:
    """Return the last value of each metric at the end of the records; nothing if they cannot be read."""
    log = folder / METRICS_JSONL
    try:
        return _values_in(log, signature_of(log))
    except OSError:
        return {}


@functools.lru_cache(maxsize=4_096)
def _values_in(log: Path, signature: Signature) -> Mapping[str, float]:  # noqa: ARG001 - one answer for each content
    return last_values(log)


def first_record(log: Path) -> Record:
    """Return the first record of `log`; an empty one if there is none at its beginning.

    Raises:
        OSError: it cannot be read.
    """
    return next(iter(read_from(log, max_bytes=_HEAD_BYTES).records), {})


def read_ends(log: Path) -> Fields:
    """Return what the first and last records of `log` say, reading a few kilobytes; nothing if it cannot be read."""
    try:
        first, records = first_record(log), tail_records(log, _END_BYTES)
    except OSError:
        return {}
    started, ended = _time_in(first), next(filter(None, map(_time_in, reversed(records))), None)
    steps = (record for record in reversed(records) if record.get("event") == STEP)
    last = with_non_finite(next(steps, {}))
    loss = number_in(last.get("train_loss"))
    return {
        "created": started,
        "last_sign": ended,
        "duration_s": None if started is None or ended is None else max(0.0, ended - started),
        "max_steps": _whole(first.get("max_steps")),
        "step": _whole(last.get("global_step")),
        "loss": loss,
        "loss_metric": None if loss is None else "train_loss",
        **{name: number_in(last.get(name)) for name in ("epoch", "lr", "samples_per_sec")},
    }


def _time_in(record: Record) -> float | None:
    found = number_in(record.get("time"))
    return found if found is not None and 0 < found < _LATEST_TIME else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None


_ORDER: Final = {name: at for at, name in enumerate(TRAIN_LOSSES)}


def loss_name(names: Iterable[str]) -> str | None:
    """Return which of the metrics is the training loss; None if none is."""
    ranked = []
    for at, name in enumerate(names):
        lower = name.lower()
        if name in _ORDER:
            ranked.append((0, _ORDER[name], name))
        elif "loss" in lower and name not in VAL_LOSSES and not is_evaluation(name):
            ranked.append((1 if lower.endswith("loss") else 2, at, name))
    return min(ranked)[2] if ranked else None


def known_values(summary: Mapping[str, Any], evaluations: Mapping[str, Evaluation]) -> dict[str, float]:
    """Return the last values in a run.json; the summary has those of the last step alone, maybe without the loss."""
    found = {name: item.last for name, item in evaluations.items()}
    for name, value in with_non_finite(dict(summary)).items():
        if value is None and name == "train_loss" and math.isfinite(found.get(name, 0.0)):
            # JSON has no NaN.
            found[name] = math.nan
        elif is_number(value):
            found[name] = float(value)
    return found


def last_values(log: Path, within_bytes: int = 64 * 1024) -> dict[str, float]:
    """Return the last value of each metric in the records at the end of `log`. Raises OSError if it cannot be read."""
    records = tail_records(log, within_bytes)
    return _last_in(records, redone_from(records))


def _last_in(records: Iterable[Record], limits: Mapping[int, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in records:
        if record.get("event") != SYSTEM and counts(record, limits):
            found.update(metrics_of(record))
    return found
