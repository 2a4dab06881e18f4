"""Diagnoses runs on disk: run folders, and JSONL or CSV files of other programs."""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.diagnostics.ending import Ending, Endings, RunError
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.diagnostics.foreign_file import ForeignFile, NoRecordsError
from toolkit.telemetry.diagnostics.policy import Policy, policy_of_run
from toolkit.telemetry.diagnostics.rank_files import MAX_RANKS
from toolkit.telemetry.diagnostics.silent_ranks import (
    findings_about,
    lost_ranks,
    not_yet_reported,
    read_tails,
)
from toolkit.telemetry.runfolder.labels import ProjectSettingsError, read_project
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL, RANKS, LinkedRanks, rank_file
from toolkit.telemetry.runfolder.listed_run import missing_records
from toolkit.telemetry.runfolder.manifest import Manifest, ManifestError, incomplete_mirrors, read_manifest
from toolkit.telemetry.runfolder.parts import describe_part, is_run_folder, part_in, record_files
from toolkit.telemetry.runfolder.reader import BadLine, blocks_of, lines_of, parse_line, records_in
from toolkit.telemetry.runfolder.records import STEP, Record
from toolkit.telemetry.runfolder.status import LOST, RUNNING, STALLED

_MAX_RUNS: Final = 20_000
_CHUNK: Final = 2_000
_FILE_ENDINGS: Final = frozenset({".jsonl", ".ndjson", ".csv"})

OnRecords = Callable[[int], None]
"""Called with the number of records read so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with one run."""

    name: str
    path: Path
    findings: Sequence[Finding] = ()
    """In the order in which they were detected."""
    ending: Ending | None = None
    """How it ended, or that it is running; None if unknown."""
    errors: Sequence[RunError] = ()
    """Its distinct errors of all sessions and ranks, including the one that ended it."""
    records: int = 0
    bad_lines: int = 0
    """Unreadable lines."""
    is_cut: bool = False
    """Whether its records end before the last one that run.json counts; a note says so."""
    manifest: Manifest | None = None
    notes: Sequence[str] = ()
    """Remarks about how it was read."""


def find_runs(path: Path) -> list[Path]:
    """Return the runs at `path`: itself, or the run folders one level below it, sorted by name.

    In a folder without run folders these are its JSONL and CSV files. Links below `path` are not followed. Folders that
    may not be read come last.

    Raises:
        OSError: `path` does not exist or cannot be listed.
        NoRecordsError: it is a folder with neither.
    """
    if not path.is_dir():
        os.lstat(path)
        return [path]
    part = part_in(path)
    if part is not None:
        raise NoRecordsError(f"{path} is {describe_part(path, part)}; rank 0's folder has the run")
    if is_run_folder(path):
        return [path]
    folders, files = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(path / entry.name)
            elif entry.is_file(follow_symlinks=False) and Path(entry.name).suffix.lower() in _FILE_ENDINGS:
                files.append(path / entry.name)
    runs = [folder for folder in folders if is_run_folder(folder) and part_in(folder) is None]
    # What may be a run, and may not be read: whoever diagnoses it says so.
    closed = [folder for folder in folders if not os.access(folder, os.R_OK | os.X_OK)]
    found = [*(sorted(runs) or sorted(files)), *sorted({*closed} - {*runs})]
    if not found:
        raise NoRecordsError(
            f"no run found in {path} (no {METRICS_JSONL} there or one level below, and no JSONL or CSV file)"
        )
    return found[:_MAX_RUNS]


def diagnose(path: Path, *, policy: Policy | None = None, on_records: OnRecords | None = None) -> Diagnosis:
    """Return what is wrong with the run folder or file at `path`, which may still grow.

    The default `policy` of a run folder is the one in its manifest. Memory use does not depend on the run's length.

    Raises:
        OSError: the record file is missing, unreadable, not a regular file, or was replaced while it was read.
        NoRecordsError: a file of another program has no readable records.
    """
    return _Reading(path, policy, on_records).diagnosis()


def diagnose_records(
    name: str, path: Path, chunks: Iterable[list[Record]], *, on_records: OnRecords | None = None
) -> Diagnosis:
    """Return what is wrong with a run of another tool, whose records `chunks` yields."""
    return _Reading(path, None, on_records).diagnosis_of(name, chunks)


class _Reading:
    """Reads one run and runs the detectors over it."""

    def __init__(self, path: Path, policy: Policy | None, on_records: OnRecords | None) -> None:
        self._path = path
        self._has_policy = policy is not None
        self._examiner = Examiner(policy)
        self._on_records = on_records
        self._records = 0
        self._bad_lines = 0
        self._notes: list[str] = []
        self._files: dict[int, Path] = {}
        self._endings = Endings()

    def diagnosis(self) -> Diagnosis:
        # "." has no name of its own, and a link's name says more than its target.
        absolute = Path(os.path.abspath(self._path))
        if not self._path.is_dir():
            self._take_foreign_file()
            return self._result(absolute.stem, None)
        manifest = None
        try:
            manifest = read_manifest(self._path)
        except FileNotFoundError:
            self._notes.append(f"there is no {MANIFEST}")
        except (OSError, ManifestError) as error:
            self._notes.append(str(error))
        if manifest is not None and not self._has_policy:
            self._examiner = Examiner(policy_of_run(manifest.diagnostics, self._rules_of(manifest.project)))
        self._take_run_folder(manifest)
        return self._result(absolute.name, manifest)

    def _rules_of(self, project: str | None) -> Sequence[Any]:
        """Return the rules of the run's project, which are beside its folder."""
        try:
            return read_project(self._path.parent, project).alerts
        except ProjectSettingsError as error:
            self._notes.append(f"the rules of the project are not known: {error}")
            return ()

    def diagnosis_of(self, name: str, chunks: Iterable[list[Record]]) -> Diagnosis:
        for chunk in chunks:
            self._take(chunk)
        if not self._records:
            raise NoRecordsError(f"{name} has no numbers")
        return self._result(name, None)

    def _result(self, name: str, manifest: Manifest | None) -> Diagnosis:
        endings = self._endings
        if endings.failures_of_telemetry:
            times = endings.failures_of_telemetry
            first = (
                f"{'; first' if times > 1 else ''}: {endings.first_failure}" if endings.first_failure else ""
            )
            self._notes.append(
                f"telemetry itself failed {'once' if times == 1 else f'{times:,} times'}{first}"
            )
        behind = incomplete_mirrors(manifest)
        if behind:
            self._notes.append(
                f"the last records are missing in {behind}; `telemetry repair` rebuilds metrics.csv"
            )
        if endings.lost_records:
            lost = endings.lost_records
            self._notes.append(f"the run declared {lost:,} {'record' if lost == 1 else 'records'} lost")
        ending = endings.ending(manifest, time.time())
        missing = None if manifest is None else missing_records(manifest, self._path)
        if missing is not None:
            self._notes.insert(0, missing)
        if ending is not None and ending.status == LOST and _has_journal(manifest):
            self._notes.append("its last records are still in a journal; `telemetry repair` recovers them")
        if len(self._files) > 1:
            self._look_for_lost_ranks(is_live=ending is not None and ending.status in (RUNNING, STALLED))
        return Diagnosis(
            name=name,
            path=self._path,
            findings=self._examiner.findings(),
            ending=ending,
            errors=endings.errors(),
            records=self._records,
            bad_lines=self._bad_lines,
            is_cut=missing is not None,
            manifest=manifest,
            notes=tuple(self._notes),
        )

    def _take(self, records: Sequence[Record]) -> None:
        self._examiner.take(records)
        self._records += len(records)
        if self._on_records is not None:
            self._on_records(self._records)

    def _take_foreign_file(self) -> None:
        self._take_all_of(ForeignFile(self._path))
        if not self._records:
            lines = (
                "its only line is" if self._bad_lines == 1 else f"all of its {self._bad_lines:,} lines are"
            )
            reason = f"{lines} unreadable" if self._bad_lines else "it is empty"
            raise NoRecordsError(f"{self._path.name} has no records: {reason}")

    def _take_all_of(self, file: ForeignFile) -> None:
        for chunk in file.chunks():
            self._endings.take(chunk)
            self._take(chunk)
        self._bad_lines = file.bad_lines
        self._notes += file.notes

    def _take_run_folder(self, manifest: Manifest | None) -> None:
        ranks = self._other_ranks()
        if manifest is None and not ranks:
            # Perhaps written by another program: the result is the same with or without the folder around the file.
            self._take_all_of(ForeignFile(rank_file(self._path, 0)))
            return
        chunks = self._chunks_with(ranks) if ranks else self._chunks(rank_file(self._path, 0))
        for chunk in chunks:
            self._take(chunk)

    def _chunks(self, path: Path) -> Iterator[Sequence[Record]]:
        for block in blocks_of(path):
            records, bad_lines = records_in(block)
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

    def _look_for_lost_ranks(self, *, is_live: bool) -> None:
        """Add the findings about ranks that died or fell silent, which no record says."""
        tails = read_tails(self._files)
        lost = lost_ranks(self._files, tails, now=time.time(), is_live=is_live)
        session = max((tail.session for tail in tails.values()), default=0)
        new = not_yet_reported(lost, self._examiner.findings(), session)
        for finding in findings_about(new, session=session, step=self._examiner.last_step):
            self._examiner.add(finding)

    def _chunks_with(self, ranks: Sequence[int]) -> Iterator[list[Record]]:
        """Yield the run's records merged with the steps of the other ranks, by time."""
        streams = [_timed(self._of_rank_0()), *(_timed(self._steps_of(rank)) for rank in ranks)]
        merged = heapq.merge(*streams, key=lambda timed: timed[0])
        while chunk := [record for _, record in itertools.islice(merged, _CHUNK)]:
            yield chunk

    def _of_rank_0(self) -> Iterator[Record]:
        for chunk in self._chunks(rank_file(self._path, 0)):
            yield from chunk

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
                    if record.get("event") == STEP:
                        record["rank"] = rank
                        yield record
        except OSError as error:
            self._notes.append(f"rank {rank} could not be read completely: {error.strerror or error}")


def _has_journal(manifest: Manifest | None) -> bool:
    latest = None if manifest is None else manifest.latest
    return latest is not None and latest.journal is not None and os.path.lexists(latest.journal)


def _timed(records: Iterator[Record]) -> Iterator[tuple[float, Record]]:
    last = 0.0
    for record in records:
        moment = record.get("time")
        if type(moment) is float or type(moment) is int:
            last = moment
        yield last, record
