"""A run to export, ours or another tool's, as records of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from toolkit.exchange.imported_folder import all_records
from toolkit.exchange.kept_files import file_keeper
from toolkit.exchange.record_maker import CONFIG, RecordMaker
from toolkit.importers.source import RunSource, read_all
from toolkit.mirrors.shared.scalars import scalars_of
from toolkit.privacy.masking import Masker
from toolkit.privacy.secret_shapes import mask_text
from toolkit.runfolder.codec import encodable
from toolkit.runfolder.end_record import with_end_record
from toolkit.runfolder.layout import other_ranks
from toolkit.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.runfolder.metrics import CARRIES_METRICS, EPOCH_PREFIX, NOT_METRICS
from toolkit.runfolder.records import END, EPOCH, NON_FINITE, START, STEP, Record

_NOT_CONFIG: Final = frozenset({"event", "time", "elapsed", "seq", "session", "rank"})


class ExportError(OSError):
    """A run cannot be exported; the message says why."""


@dataclass(slots=True, kw_only=True)
class ExportedRun:
    """What an exporter is given: who the run is, and its records as often as they are asked for."""

    name: str
    run_id: str
    project: str
    tags: tuple[str, ...] = ()
    folder: Path
    """Where the paths in its records begin."""
    keeps_names: bool = False
    """Whether another tool named the metrics: then they get no prefix."""
    notes: list[str] = field(default_factory=list)
    all_records: Callable[[], Iterable[Record]]
    metrics: str | None = None
    """Export only metrics whose names match."""
    all_sessions: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    status: str = "unknown"
    """`finished`, `failed`, `stopped`, or `unknown`."""
    started: float = math.nan
    ended: float = math.nan

    def __post_init__(self) -> None:
        # The name of a file may have bytes that are no text.
        self.name, self.run_id, self.project = map(encodable, (self.name, self.run_id, self.project))
        self.tags = tuple(map(encodable, self.tags))

    def look(self) -> None:
        """Read the records once, to know the configuration, when it began and how it ended."""
        masker = Masker()
        for record in self.all_records():
            event, moment = record.get("event"), record.get("time")
            if isinstance(moment, (int, float)) and math.isfinite(moment):
                self.started = min(moment, self.started) if self.started == self.started else float(moment)
                self.ended = max(moment, self.ended) if self.ended == self.ended else float(moment)
            if event == START:
                own = {name: value for name, value in record.items() if name not in _NOT_CONFIG}
                if self.keeps_names:
                    own = record.get(CONFIG) or {}
                self.config.update(masker.mask(own) if isinstance(own, dict) else {})
            elif event == CONFIG and isinstance(record.get(CONFIG), dict):
                self.config.update(masker.mask(record[CONFIG]))
            elif event == END:
                status = record.get("status")
                self.status = status if status in ("finished", "failed", "stopped") else "unknown"

    def records(self) -> Iterator[Record]:
        """Yield the records that are exported, each with `seq`, metrics with the names that they have here."""
        limits = {} if self.all_sessions else _superseded(self.all_records())
        for record in self.all_records():
            step = record.get("global_step")
            limit = limits.get(record.get("session"))
            if limit is not None and isinstance(step, int) and step >= limit:
                continue
            if record.get("event") in CARRIES_METRICS:
                chosen = self._chosen(record)
                if chosen is not None:
                    yield chosen
            else:
                yield record

    def scalars(self) -> Iterator[tuple[Record, dict[str, float]]]:
        """Yield each record with metrics, and these under the names that other tools get."""
        for record in self.records():
            if values := scalars_of(self.for_tools(record)):
                yield record, values

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


def run_of_folder(folder: Path) -> ExportedRun:
    """Return the run of a run folder of ours."""
    manifest: Manifest | None
    try:
        manifest = with_end_record(read_manifest(folder), folder)
    except (OSError, ManifestError):
        manifest = None
    run = ExportedRun(
        name=manifest.display_name if manifest else folder.name,
        run_id=manifest.run_id if manifest else folder.name,
        project=(manifest.project if manifest else None) or "ai-toolkit",
        tags=manifest.tags if manifest else (),
        folder=folder,
        keeps_names=manifest is not None and "imported_from" in manifest.other,
        all_records=lambda: all_records(folder),
    )
    try:
        others = other_ranks(folder)
    except OSError:
        others = []
    if others:
        run.notes.append(f"the records of {len(others)} other ranks were not exported")
    return run


def run_of_source(source: RunSource, scratch: Path) -> ExportedRun:
    """Return a run of another tool; its images are copied into `scratch`.

    Raises:
        ExportError: it cannot be read.
    """
    folder = scratch / source.info.source_id
    folder.mkdir(mode=0o700)
    maker = RecordMaker(source.info, file_keeper(source, folder), started=set(), known={})
    found: list[Record] = []
    passed: dict[str, int] = {}
    for batch in read_all(source):
        if batch.replaced:
            raise ExportError(f"{source.info.name} was rewritten while it was read")
        found += maker.make(batch)
        for (_, reason), count in batch.passed_over.items():
            passed[reason] = passed.get(reason, 0) + count
    if (start := maker.start_of_nothing()) is not None:
        found.append(start)
    for seq, record in enumerate(found):
        record["seq"] = seq
    info = source.info
    run = ExportedRun(
        name=mask_text(info.name),
        run_id=f"{info.format}-{info.source_id}",
        project=mask_text(info.group or info.format),
        tags=tuple(map(mask_text, info.tags)),
        folder=folder,
        keeps_names=True,
        all_records=lambda: found,
    )
    run.notes += [f"{count:,} {reason}: not read" for reason, count in passed.items()]
    run.notes += [f"{count:,} {reason}" for reason, count in maker.not_kept.items()]
    return run


def _superseded(records: Iterable[Record]) -> dict[Any, int]:
    """Return for each session the step from which on a later one logged again."""
    first: dict[int, int] = {}
    for record in records:
        session, step = record.get("session"), record.get("global_step")
        if record.get("event") == STEP and isinstance(step, int) and isinstance(session, int):
            first.setdefault(session, step)
    limits: dict[Any, int] = {}
    lowest: int | None = None
    for session in sorted(first, reverse=True):
        if lowest is not None:
            limits[session] = lowest
        lowest = first[session] if lowest is None else min(lowest, first[session])
    return limits
