"""Another tool's run as a run folder of ours."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.exchange.exported_run import ExportedRun, ExportError, folder_names
from toolkit.telemetry.importers.source import RunSource
from toolkit.telemetry.importers.summary import plain
from toolkit.telemetry.mirrors.shared.scalars import scalars_of
from toolkit.telemetry.privacy.secret_shapes import mask_text
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.layout import (
    METRICS_CSV,
    METRICS_JSONL,
    PRIVATE,
    SAMPLES,
    TABLES,
    make_folders,
)
from toolkit.telemetry.runfolder.manifest import Heartbeat, Manifest, Session, write_manifest
from toolkit.telemetry.runfolder.records import END, STEP, Record
from toolkit.telemetry.runfolder.status import LOST
from toolkit.telemetry.runfolder.table.csv_table import build_table

LOSES: Final = "what a run folder has no place for is left out"
_MAX_FILES: Final = 100


def write(runs: Sequence[ExportedRun], out: Path) -> int:
    """Write a run folder for each run into the log directory `out`; return the points."""
    points = 0
    for name, run in zip(folder_names(runs), runs, strict=True):
        if run.source is None:
            raise ExportError(f"{run.folder} is a run folder already")
        make_folders(out / name, PRIVATE.folder)
        points += _write_run(run, run.source, out / name)
    return points


def _write_run(run: ExportedRun, source: RunSource, folder: Path) -> int:
    points = 0
    seq = -1
    sessions: dict[int, dict[str, Any]] = {}
    path = folder / METRICS_JSONL
    with path.open("xb") as file:
        path.chmod(PRIVATE.file)
        for seq, record in enumerate(_with_end(run, source)):
            file.write(encode({**record, "seq": seq}))
            points += len(scalars_of(run.for_tools(record)))
            _note(sessions.setdefault(record["session"], {}), record)
    build_table(path, folder / METRICS_CSV, form="short")
    for kept in (SAMPLES, TABLES):
        if (run.folder / kept).is_dir():
            shutil.copytree(run.folder / kept, folder / kept)
    write_manifest(folder, _manifest(run, source, folder.name, sessions, seq), mode=PRIVATE.file)
    return points


def _with_end(run: ExportedRun, source: RunSource) -> Iterator[Record]:
    session = 1
    for record in run.records():
        session = max(session, record["session"])
        yield record
    if run.status in ("finished", "failed"):
        ended = source.status(time.time()).ended
        timestamp = ended if math.isfinite(ended) else run.ended
        when = {"time": timestamp} if math.isfinite(timestamp) else {}
        reason = "recorded by the tool that wrote it"
        yield {"event": END, **when, "session": session, "status": run.status, "reason": reason}


def _note(about: dict[str, Any], record: Record) -> None:
    timestamp, step = record.get("time"), record.get("global_step")
    if timestamp is not None:
        about["started"] = min(about.get("started", timestamp), timestamp)
        about["last"] = max(about.get("last", timestamp), timestamp)
    if step is not None and record["event"] == STEP:
        about["step"] = max(about.get("step", step), step)


def _manifest(
    run: ExportedRun, source: RunSource, name: str, sessions: dict[int, dict[str, Any]], seq: int
) -> Manifest:
    info = source.info
    newest = max(sessions)
    created = min(
        (about["started"] for about in sessions.values() if "started" in about), default=time.time()
    )
    last = max((about["last"] for about in sessions.values() if "last" in about), default=created)
    ended = run.status if run.status != "unknown" else LOST
    reason = f"written by {info.format}" if ended != LOST else f"{info.format} wrote no end of this run"
    provenance = {
        "format": info.format,
        "source_id": info.source_id,
        "run_id": info.run_id or None,
        "parent": info.parent or None,
        "writer": info.writer or None,
        # Relative paths: a run folder may be shared.
        "files": [piece.path for piece in info.pieces[:_MAX_FILES]],
        "notes": [mask_text(note) for note in info.notes],
    }
    return Manifest(
        run_id=run.run_id,
        name=name,
        display_name=run.name or name,
        project=info.group and run.project,
        tags=run.tags,
        created=created,
        sessions=tuple(
            Session(
                session=number,
                started=about.get("started", created),
                pid=0,
                ended=about.get("last"),
                status=ended if number == newest else LOST,
                reason=reason,
            )
            for number, about in sorted(sessions.items())
        ),
        heartbeat=Heartbeat(time=last, seq=seq, global_step=sessions[newest].get("step")),
        table="short",
        other={"imported_from": plain(provenance)},
    )
