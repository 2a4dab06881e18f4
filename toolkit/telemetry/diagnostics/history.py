"""Diagnoses a run on disk by reading it once: a run folder, or what another tool logged."""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.diagnostics.diagnosis import Diagnosis, NoRecordsError, notes_about
from toolkit.telemetry.diagnostics.ending import Endings
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import latest_findings
from toolkit.telemetry.diagnostics.policy import policy_of_run
from toolkit.telemetry.diagnostics.silent_ranks import LostRanks
from toolkit.telemetry.importers.as_records import records_in
from toolkit.telemetry.importers.formats.record_file import FORK
from toolkit.telemetry.importers.formats.table_file import FORMAT as TABLE
from toolkit.telemetry.importers.source import RunSource, read_all
from toolkit.telemetry.runfolder.labels import ProjectSettingsError, read_project
from toolkit.telemetry.runfolder.layout import MANIFEST, RANKS, LinkedRanks, rank_file
from toolkit.telemetry.runfolder.listed_run import first_record, missing_records
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, read_manifest
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runfolder.reader import BadLine, blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.reader import records_in as records_of_block
from toolkit.telemetry.runfolder.records import END, FINDING, STEP, Record
from toolkit.telemetry.runfolder.status import LOST, RUNNING, STALLED

_CHUNK: Final = 2_000
MAX_RANKS: Final = 128
"""Other ranks whose steps are read together with those of rank 0."""
_OF_LINES: Final = ("lines ", "rows ")

_PASSES: Final = frozenset(
    clock + span
    for clock in ("time/", "device_time/")
    for span in ("forward", "backward", "training_iteration")
)
"""Fields of a step by which ranks that wait for each other are compared."""
NO_PASSES: Final = (
    "a slow rank can only be named if the ranks do not wait for each other: put `with log.training.forward():` around "
    "the forward pass and `with log.training.backward():` around the backward pass"
)

OnRecords = Callable[[int], None]
"""Called with the number of records read so far."""


def diagnose(
    run: Path | RunSource,
    *,
    name: str | None = None,
    on_records: OnRecords | None = None,
) -> Diagnosis:
    """Return what is wrong with a run folder, or with a run of another tool, which may grow.

    Memory use does not depend on the run's length.

    Raises:
        OSError: the record file is missing, unreadable, not a regular file, or was replaced while it was read.
        NoRecordsError: a run of another tool has no numbers.
    """
    return _Reading(run, name, on_records).diagnosis()


class _Reading:
    """Reads one run and runs the detectors over it."""

    def __init__(self, run: Path | RunSource, name: str | None, on_records: OnRecords | None) -> None:
        self._source = None if isinstance(run, Path) else run
        self._path = run if isinstance(run, Path) else run.info.root
        # "." has no name of its own, and a link's name says more than its target.
        absolute = Path(os.path.abspath(self._path))
        self._name = name or (absolute.name if isinstance(run, Path) else run.info.name)
        self._examiner = Examiner()
        self._on_records = on_records
        self._records = 0
        self._bad_lines = 0
        self._notes: list[str] = []
        self._files: dict[int, Path] = {}
        self._has_steps = self._has_passes = False
        """Whether other ranks have steps, and the times of their passes."""
        self._endings = Endings()

    def diagnosis(self) -> Diagnosis:
        if self._source is not None:
            self._read_source(self._source)
            return self._result(None)
        manifest = None
        try:
            manifest = read_manifest(self._path)
        except FileNotFoundError:
            self._notes.append(f"there is no {MANIFEST}")
        except (OSError, ManifestError) as error:
            self._notes.append(str(error))
        if manifest is not None:
            self._examiner = Examiner(policy_of_run(manifest.diagnostics, self._rules_of(manifest.project)))
        ranks = self._other_ranks()
        for records in self._chunks_with(ranks) if ranks else self._chunks(rank_file(self._path, 0)):
            self._examine(records)
        return self._result(manifest)

    def _rules_of(self, project: str | None) -> Sequence[Any]:
        """Return the rules of the run's project, which are in the folder of its runs."""
        try:
            return read_project(self._path.parent, project).alerts
        except ProjectSettingsError as error:
            self._notes.append(f"the rules of the project are not known: {error}")
            return ()

    def _result(self, manifest: Manifest | None) -> Diagnosis:
        endings = self._endings
        self._notes += notes_about(endings, manifest)
        ending = endings.ending(manifest, time.time())
        missing = None if manifest is None else missing_records(manifest, self._path)
        if missing is not None:
            self._notes.insert(0, missing)
        journal = manifest.latest.journal if manifest is not None and manifest.latest is not None else None
        if ending is not None and ending.status == LOST and journal is not None and os.path.lexists(journal):
            self._notes.append("its last records are still in a journal; `telemetry repair` recovers them")
        if len(self._files) > 1:
            self._find_lost_ranks(is_live=ending is not None and ending.status in (RUNNING, STALLED))
        if self._has_steps and not self._has_passes:
            self._notes.append(NO_PASSES)
        return Diagnosis(
            name=self._name,
            path=self._path,
            findings=latest_findings(endings.reported, self._examiner.findings()),
            ending=ending,
            errors=endings.errors(but=ending),
            records=self._records,
            bad_lines=self._bad_lines,
            is_cut=missing is not None,
            manifest=manifest,
            notes=tuple(self._notes),
        )

    def _examine(self, records: Sequence[Record]) -> None:
        self._examiner.take(records)
        self._records += len(records)
        if self._on_records is not None:
            self._on_records(self._records)

    def _read_source(self, source: RunSource) -> None:
        file = source.info.root / source.info.pieces[0].path
        if source.info.format in (FORK, TABLE) and type(first_record(file).get("event")) is str:
            # Records like ours, with their errors and their end.
            for records in self._chunks(file):
                self._examine(records)
            return
        for batch in read_all(source):
            self._examine(records_in(source.info, batch))
            if source.info.format == TABLE:
                passed_over = batch.passed_over.items()
                self._bad_lines += sum(often for (_, why), often in passed_over if why.startswith(_OF_LINES))
        self._notes += source.info.notes
        if not self._records:
            raise NoRecordsError(f"{self._name} has no numbers")

    def _chunks(self, path: Path) -> Iterator[Sequence[Record]]:
        for block in blocks_of(path):
            records, bad_lines = records_of_block(block)
            self._bad_lines += bad_lines
            self._endings.take(records)
            yield records

    # ------------------------------------------------------------ ranks

    def _other_ranks(self) -> list[int]:
        try:
            self._files = record_files(self._path)
        except LinkedRanks as error:
            self._notes.append(str(error))
            return []
        except OSError as error:
            self._notes.append(f"{RANKS} cannot be read: {error.strerror}")
            return []
        ranks = [rank for rank in self._files if rank]
        if len(ranks) > MAX_RANKS:
            self._notes.append(f"only the first {MAX_RANKS} of {len(ranks):,} other ranks were read")
        return ranks[:MAX_RANKS]

    def _find_lost_ranks(self, *, is_live: bool) -> None:
        """Add the findings about ranks that died or fell silent, which no record says."""
        ranks = LostRanks()
        ranks.look(self._files, now=time.time(), is_live=is_live)
        for finding in ranks.findings(self._examiner.findings()):
            self._examiner.add(finding)

    def _chunks_with(self, ranks: Sequence[int]) -> Iterator[list[Record]]:
        """Yield the run's records merged with the steps of the other ranks, by time."""
        of_rank_0 = itertools.chain.from_iterable(self._chunks(rank_file(self._path, 0)))
        streams = [_timed(of_rank_0), *(_timed(self._steps_of(rank)) for rank in ranks)]
        merged = heapq.merge(*streams, key=lambda timed: timed[0])
        while chunk := [record for _, record in itertools.islice(merged, _CHUNK)]:
            yield chunk

    def _steps_of(self, rank: int) -> Iterator[Record]:
        try:
            for block in blocks_of(self._files[rank]):
                self._bad_lines += block.long_line is not None
                # Line by line: the parsed blocks of a hundred ranks would need much more memory than their bytes.
                for position, line in lines_of(block):
                    record = parse_line(position, line)
                    if isinstance(record, BadLine):
                        self._bad_lines += 1
                        continue
                    self._endings.take((record,), rank)
                    self._has_steps |= record.get("event") == STEP
                    self._has_passes = self._has_passes or not _PASSES.isdisjoint(record)
                    if record.get("event") in (STEP, FINDING, END):
                        record["rank"] = rank
                        yield record
        except OSError as error:
            self._notes.append(f"rank {rank} could not be read completely: {error.strerror or error}")


def _timed(records: Iterator[Record]) -> Iterator[tuple[float, Record]]:
    last = 0.0
    for record in records:
        time = record.get("time")
        if type(time) is float or type(time) is int:
            last = time
        yield last, record
