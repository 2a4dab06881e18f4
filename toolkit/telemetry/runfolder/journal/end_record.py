"""Takes the end of a run, and its last numbers, from its records if run.json was not updated any more.

The records are the truth. A close that was cut short, by a second Ctrl-C or a disk that answered too late, may leave
an end record in spite of a run.json that still says `running`; one of a killed run is as old as its last heartbeat.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.key_values import KeyValues
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import (
    IN_SUMMARY,
    INCOMPLETE,
    Heartbeat,
    Manifest,
    ManifestError,
    incomplete_mirrors,
    read_manifest,
    write_manifest,
)
from toolkit.telemetry.runfolder.reader import last_end, offset_after, step_after, tail_records
from toolkit.telemetry.runfolder.records import STEP, Record
from toolkit.telemetry.runfolder.status import LOST, work_out_status

_UNENDED: Final = "running"
_STATUSES: Final = frozenset({"finished", "failed", "stopped"})
_LEAST_BYTES: Final = 256 * 1024
_MOST_BYTES: Final = 16 * 1024 * 1024
_LATEST: Final = 1e11


def ended_by(manifest: Manifest, end: Record | None) -> Manifest:
    """Return `manifest` with its newest session ended by the record `end`; unchanged if that is not an end."""
    status, reason, when = ((end or {}).get(name) for name in ("status", "reason", "time"))
    if status not in _STATUSES:
        return manifest
    return manifest.with_latest(
        status=status,
        reason=reason if isinstance(reason, str) else None,
        ended=float(when) if isinstance(when, (int, float)) else None,
        lock=None,
    )


def with_end_record(manifest: Manifest, folder: Path) -> Manifest:
    """Return `manifest` with the end of its newest session and its last numbers, from the records if it is unended."""
    session, beat = manifest.latest, manifest.heartbeat
    if session is None or session.status != _UNENDED:
        return manifest
    log = folder / METRICS_JSONL
    try:
        since = os.lstat(log).st_size - (offset_after(log, beat.seq) if beat is not None else 0)
        # What evaluates the model may be a little older than the heartbeat.
        records = tail_records(log, min(max(since, _LEAST_BYTES), _MOST_BYTES))
    except OSError:
        return manifest
    values = KeyValues(manifest.config, manifest.evaluations)
    values.take(records)
    summary = dict(manifest.summary)
    last = beat or Heartbeat(time=session.started)
    for record in map(with_non_finite, records):
        # That of an earlier session may be by the clock of another node.
        when = record.get("time") if record.get("session") == session.session else None
        seq = record.get("seq")
        last = Heartbeat(
            time=max(last.time, when) if isinstance(when, (int, float)) and when < _LATEST else last.time,
            seq=max(last.seq, seq) if type(seq) is int else last.seq,
            global_step=step_after(last.global_step, record),
        )
        if record.get("event") == STEP:
            summary |= {name: record[name] for name in IN_SUMMARY if type(record.get(name)) in (int, float)}
    caught_up = replace(manifest, heartbeat=last, summary=summary)
    if manifest.config is not None:
        # Else an earlier version wrote it, and they are read from all of its records.
        caught_up = replace(caught_up, config=values.config, evaluations=values.evaluations)
    return ended_by(caught_up, last_end(reversed(records), session.session))


def settle_manifest(folder: Path) -> str | None:
    """Write the end and the last numbers in the records of `folder` into its run.json, if it does not have them.

    A run that was killed is lost, and ended when it gave its last sign of life.

    Returns the status that it was given, None if it has one already.

    Raises:
        OSError: run.json cannot be written.
    """
    try:
        manifest = read_manifest(folder)
        mode = stat.S_IMODE((folder / MANIFEST).lstat().st_mode) & 0o666
    except (FileNotFoundError, ManifestError):
        return None
    settled = with_end_record(manifest, folder)
    status = work_out_status(settled, time.time())
    if status.name == LOST and settled.latest is not None and settled.latest.status == _UNENDED:
        last = settled.heartbeat
        settled = settled.with_latest(
            status=LOST, reason=status.why, ended=None if last is None else last.time, lock=None
        )
    incomplete = incomplete_mirrors(manifest).split(", ")
    if METRICS_CSV in incomplete and settled.latest is not None:
        # It was rebuilt.
        others = ", ".join(name for name in incomplete if name != METRICS_CSV)
        reason = (settled.latest.reason or "").partition(INCOMPLETE)[0]
        settled = settled.with_latest(reason=f"{reason}{INCOMPLETE}{others}" if others else reason)
    ended = settled.latest
    if settled == manifest or ended is None:
        return None
    has_ended = ended.status != _UNENDED
    if ended.status in _STATUSES and ended.journal is not None and not os.path.lexists(ended.journal):
        # Else it holds what this user could not recover.
        settled = settled.with_latest(journal=None)
    write_manifest(folder, settled, mode=mode, durable=True, owner_of=folder)
    return ended.status if has_ended else None
