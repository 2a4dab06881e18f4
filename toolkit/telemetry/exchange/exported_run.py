"""A run to export, ours or another tool's, as records of ours."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from toolkit.telemetry.core.sink import Sink
from toolkit.telemetry.exchange.kept_files import file_keeper
from toolkit.telemetry.exchange.record_maker import RecordMaker
from toolkit.telemetry.importers.source import NO_STEP, Batch, RunSource, ends_of, named_columns, read_all
from toolkit.telemetry.importers.summary import abandoned_from, add_session, before
from toolkit.telemetry.mirrors.shared.scalars import scalars_of
from toolkit.telemetry.privacy.secret_shapes import mask_name
from toolkit.telemetry.runfolder.codec import encodable, encode
from toolkit.telemetry.runfolder.journal.end_record import with_end_record
from toolkit.telemetry.runfolder.layout import METRICS_JSONL, other_ranks, safe_run_name
from toolkit.telemetry.runfolder.listed_run import missing_records
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.metrics import (
    CARRIES_METRICS,
    EPOCH_PREFIX,
    NOT_METRICS,
    as_float,
    metrics_of,
    position_of,
)
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import EPOCH, NON_FINITE, STEP, Record
from toolkit.telemetry.runfolder.redone import counts, redone_from
from toolkit.telemetry.runfolder.untrusted import finite_in

Row = tuple[int, str, "int | None", "float | None", dict[str, float]]
"""Session, event, step, time and metrics."""
Series = tuple[int, str, str, list["int | None"], list["float | None"], Sequence[float]]
"""Session, event and metric, then steps, times and values."""

_BATCH_BYTES: Final = 4 * 1024**2
_LARGEST_WHOLE: Final = 2**53
_AT_ONCE: Final = 1_000
_MOST_NAMES: Final = 10


class ExportError(OSError):
    """A run cannot be exported; the message says why."""


@dataclass(slots=True, kw_only=True)
class ExportedRun:
    """What an exporter is given: who the run is, and its records as often as they are asked for."""

    name: str
    label: str
    """Its name; where several runs of an export have that one, what `ls` calls it."""
    run_id: str
    project: str
    tags: tuple[str, ...] = ()
    folder: Path
    """Where the paths in its records begin."""
    keeps_names: bool = False
    """Whether another tool named the metrics: then they get no prefix."""
    notes: list[str] = field(default_factory=list)
    all_records: Callable[[], Iterable[Record]]
    source: RunSource | None = None
    """The run of another tool."""
    metrics: str | None = None
    """Export only metrics whose names match."""
    all_sessions: bool = False
    status: str = "unknown"
    """Of another tool's run: `finished`, `failed` or `unknown`."""
    started: float = math.nan
    ended: float = math.nan
    """Of another tool's run."""
    limits: dict[int, int] = field(default_factory=dict)
    """From which step on a later session of another tool's run logged again, by session."""
    left_out: int = 0
    """Points of such steps that were not exported."""
    rounded: int = 0
    """Whole numbers that a double cannot hold."""

    def __post_init__(self) -> None:
        # The name of a file may have bytes that are no text.
        texts = (self.name, self.label, self.run_id, self.project)
        self.name, self.label, self.run_id, self.project = map(encodable, texts)
        self.tags = tuple(map(encodable, self.tags))

    def read_about(self) -> None:
        """Read the run, to know when it began and, of another tool's, what it has and how it ended.

        Raises:
            ExportError: it cannot be read.
        """
        if self.source is not None:
            self._read_about_source(self.source)
            return
        times = (finite_in(record.get("time")) for record in self.all_records())
        self.started = next((timestamp for timestamp in times if timestamp is not None), math.nan)

    def _read_about_source(self, source: RunSource) -> None:
        sessions: dict[int, dict[str, Any]] = {}
        passed: Counter[str] = Counter()
        no_numbers: Counter[str] = Counter()
        points = large = 0
        for batch in _whole(source):
            for _, column in named_columns(source.info, batch):
                add_session(sessions, column)
                points += len(column)
                if len(column) and not max(map(abs, ends_of(column.values))) < _LARGEST_WHOLE:
                    large += sum(abs(value) >= _LARGEST_WHOLE and value % 1 == 0 for value in column.values)
                ends = [
                    timestamp
                    for timestamp in (column.times[:1] + column.times[-1:])
                    if timestamp == timestamp
                ]
                self.started = min([*ends, self.started])
                self.ended = max([*ends, self.ended])
            for (_, reason), count in batch.passed_over.items():
                passed[reason] += count
            for (_, name), count in batch.not_numbers.items():
                no_numbers[name] += count
        info = source.info
        texts = (info.name, info.group or info.format, *info.tags)
        self.name, self.project, *tags = (encodable(mask_name(text)) for text in texts)
        self.tags = tuple(tags)
        state = source.status(time.time()).state
        self.status = state if state in ("finished", "failed") else "unknown"
        self.limits = abandoned_from(sessions)
        self.notes += [f"{count:,} {reason}: not read" for reason, count in passed.items()]
        if no_numbers:
            names = ", ".join(repr(encodable(name)[:100]) for name in list(no_numbers)[:_MOST_NAMES])
            self.notes.append(
                f"{sum(no_numbers.values()):,} values that are no numbers are no points: {names}"
            )
        if large:
            self.notes.append(f"{large:,} values from 2^53 on: whole numbers of that size are not exact")
        if not points:
            self.notes.append(f"{self.name} has no numbers")

    def rows(self) -> Iterator[Row]:
        """Yield session, event, step, time and metrics of each record of ours; names are as `show` has them."""
        for record in self.records():
            values = dict(metrics_of(record))
            if values:
                at = position_of(record)
                step = int(at.step) if math.isfinite(at.step) else None
                timestamp = at.time if math.isfinite(at.time) else None
                yield at.session, record["event"], step, timestamp, values

    def series(self, source: RunSource) -> Iterator[Series]:
        """Yield the points of another tool's run in the order of each series, under the names that `show` has."""
        self.left_out = 0
        for batch in _whole(source):
            for name, column in named_columns(source.info, batch):
                if self.metrics is not None and not fnmatchcase(name, self.metrics):
                    continue
                limit = None if self.all_sessions else self.limits.get(column.session)
                shown = before(column, limit)
                self.left_out += len(column) - len(shown)
                steps = [None if step == NO_STEP else step for step in shown.steps]
                times = [timestamp if timestamp == timestamp else None for timestamp in shown.times]
                yield column.session, column.kind, encodable(name), steps, times, shown.values

    def records(self) -> Iterator[Record]:
        """Yield the records that are exported, each with `seq`, metrics with the names that they have here."""
        limits: dict[int, int] = {}
        if not self.all_sessions:
            # Sessions of records begin at 1.
            of_source = {session + 1: step for session, step in self.limits.items()}
            limits = of_source if self.source is not None else redone_from(self.all_records())
        self.left_out = self.rounded = 0
        for record in self.all_records():
            has_metrics = record.get("event") in CARRIES_METRICS
            chosen = self._chosen(record) if has_metrics else record
            if chosen is not None and not counts(record, limits):
                self.left_out += len(scalars_of(chosen))
            elif chosen is not None:
                if has_metrics:
                    self.rounded += sum(
                        type(value) is int and as_float(value) != value for value in chosen.values()
                    )
                yield chosen

    def for_tools(self, record: Record) -> Record:
        """Return `record` so that our mirrors put no prefix before names that another tool gave."""
        if self.keeps_names and record.get("event") in CARRIES_METRICS:
            return {**record, "event": STEP}
        return record

    def _chosen(self, record: Record) -> Record | None:
        if self.metrics is None:
            return record
        prefix = EPOCH_PREFIX if record.get("event") == EPOCH else ""
        kept = {
            name: value
            for name, value in record.items()
            if name in NOT_METRICS or name == NON_FINITE or fnmatchcase(f"{prefix}{name}", self.metrics)
        }
        named = kept.get(NON_FINITE)
        if isinstance(named, dict):
            kept[NON_FINITE] = {name: word for name, word in named.items() if name in kept}
        has_metric = any(name not in NOT_METRICS and name != NON_FINITE for name in kept)
        return kept if has_metric else None


def run_of_folder(folder: Path, label: str) -> ExportedRun:
    """Return the run of a run folder of ours."""
    manifest: Manifest | None
    try:
        manifest = with_end_record(read_manifest(folder), folder)
    except (OSError, ManifestError):
        manifest = None
    run = ExportedRun(
        name=manifest.display_name if manifest else folder.name,
        label=label,
        run_id=manifest.run_id if manifest else folder.name,
        project=(manifest.project if manifest else None) or "ai-toolkit",
        tags=manifest.tags if manifest else (),
        folder=folder,
        keeps_names=manifest is not None and "imported_from" in manifest.other,
        all_records=lambda: records_of(folder / METRICS_JSONL),
    )
    try:
        others = other_ranks(folder)
    except OSError:
        others = []
    if manifest is not None and (missing := missing_records(manifest, folder)):
        run.notes.append(missing)
    if others:
        run.notes.append(f"the records of {len(others)} other ranks were not exported")
    return run


def run_of_source(source: RunSource, label: str, scratch: Path) -> ExportedRun:
    """Return a run of another tool, to be looked at; records and images go into `scratch` if they are needed."""
    info = source.info
    run = ExportedRun(
        name=mask_name(info.name),
        label=mask_name(label),
        run_id=f"{info.format}-{info.source_id}",
        project=mask_name(info.group or info.format),
        folder=scratch / info.source_id,
        keeps_names=True,
        all_records=lambda: _kept_records(run, source),
        source=source,
    )
    return run


def _kept_records(run: ExportedRun, source: RunSource) -> Iterable[Record]:
    """Write the records of another tool's run to a file, once, and return them from there: they may be many."""
    if not os.path.lexists(run.folder):
        run.folder.mkdir(mode=0o700)
        maker = RecordMaker(source.info, file_keeper(source, run.folder))
        with (run.folder / METRICS_JSONL).open("xb") as file:
            for seq, record in enumerate(maker.records(_whole(source))):
                file.write(encode({**record, "seq": seq}))
        run.notes += [f"{count:,} {reason}" for reason, count in maker.not_kept.items()]
        run.notes += [f"the metric {name!r} is called {new!r}" for name, new in maker.renamed.items()]
    return records_of(run.folder / METRICS_JSONL)


def _whole(source: RunSource) -> Iterator[Batch]:
    for batch in read_all(source, max_bytes=_BATCH_BYTES):
        if batch.replaced:
            raise ExportError(f"{source.info.name} was rewritten while it was read")
        yield batch


def folder_names(runs: Sequence[ExportedRun]) -> list[str]:
    """Return the name of a folder for each run, no two the same."""
    names: list[str] = []
    for number, run in enumerate(runs, start=1):
        name = safe_run_name(run.label)
        names.append(name if name not in names else f"{name}-{number}")
    return names


def mirror(records: Iterator[Record], sink: Sink) -> int:
    """Write records by a mirror, close it, and return the points."""
    points = 0
    with closing(sink):
        while batch := list(islice(records, _AT_ONCE)):
            points += sum(len(scalars_of(record)) for record in batch)
            sink.write(batch)
    return points


def new_file(path: Path) -> BinaryIO:
    """Return a file that did not exist, which only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600), "wb")
