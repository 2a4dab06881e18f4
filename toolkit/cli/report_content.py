"""What a report needs to know about a run of the list: read once, for `report` and `doctor --html`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from toolkit.cli.chosen_run import printable
from toolkit.cli.run_list import ListedRun
from toolkit.cli.terminal import size_text
from toolkit.core.guard import Guard
from toolkit.diagnostics.foreign_file import NoRecordsError
from toolkit.diagnostics.history import Diagnosis, diagnose, diagnose_records
from toolkit.importers.as_records import records_of
from toolkit.importers.detect import find_sources
from toolkit.importers.record_file import OURS
from toolkit.importers.source import RunSource
from toolkit.importers.summary import plain
from toolkit.reports.content import RunContent, masked
from toolkit.reports.document import Picture
from toolkit.reports.read_content import POINTS, CurveReader, LatestSamples
from toolkit.runfolder.layout import MANIFEST
from toolkit.runfolder.records import START, Record
from toolkit.runfolder.safefile import replace_file
from toolkit.timing.history import read_run_time
from toolkit.timing.ledger import Ledger

STDOUT: Final = "-"

OnWork = Callable[[str], None]
"""Called with what is being done."""


class UnreadableRunError(Exception):
    """A run cannot be read; the message says why."""


def content_of(
    run: ListedRun,
    *,
    found: Diagnosis | None = None,
    points: int = POINTS,
    on_work: OnWork = lambda _text: None,
) -> RunContent:
    """Return what a report says about `run`; `found` is its diagnosis, if it was made before.

    Raises:
        UnreadableRunError: there is nothing to read.
    """
    source = _other_tools(run)
    name = run.called
    found = _diagnosis(run, on_work) if found is None else found
    last = max([run.step or 0, *(finding.noticed_step for finding in found.findings)])
    reader = CurveReader(name, findings=found.findings, steps=(0.0, float(last)), points=points)
    ledger: Ledger | None = None
    pictures: list[Picture] = []
    problems: list[str] = []
    if source is not None:
        guard = Guard()
        if guard.call("reading", _read, reader, source, name, on_work) is None:
            raise UnreadableRunError(f"{run.path} could not be read: {', '.join(guard.counts)}")
        given = plain(source.info.config)
    else:
        folder = _OurFolder(reader)
        with _as_unreadable(run.path):
            ledger = read_run_time(
                run.path,
                on_records=lambda records: on_work(f"{name}: curves of {records:,} records"),
                also=folder.take,
            ).ledger
        pictures, problems = folder.samples.pictures(run.path)
        given = plain(folder.config)
    ending = found.ending
    cause = None if ending is None else ending.error
    steps = run.settings.get("max_steps")
    return masked(
        RunContent(
            name=name,
            logged_by="" if run.format == OURS else run.format,
            status=(ending.status if ending is not None else None) or run.status,
            why=(ending.why if ending is not None else None) or run.why or "",
            step=run.step,
            max_steps=steps if type(steps) is int else None,
            started=run.started,
            duration_s=_duration(run, ledger),
            records=found.records,
            bad_lines=found.bad_lines,
            notes=[*found.notes, *problems, *([run.problem] if run.problem else [])],
            curves=reader.curves(),
            evidence=reader.evidence(),
            settings=run.settings,
            config=given,
            findings=found.findings,
            errors=[error for error in found.errors if error != cause],
            ending=ending,
            control={} if found.manifest is None else found.manifest.control,
            ledger=ledger,
            pictures=pictures,
        )
    )


def _read(reader: CurveReader, source: RunSource, name: str, on_work: OnWork) -> bool:
    reader.read(source, lambda points: on_work(f"{name}: {points:,} values"))
    return True


class _OurFolder:
    """What a report needs of the records of a run folder, besides its ledger."""

    def __init__(self, reader: CurveReader) -> None:
        self.samples = LatestSamples()
        self.config: Any = {}
        """The configuration in the newest start record that has one."""
        self._reader = reader

    def take(self, records: Sequence[Record]) -> None:
        self._reader.take(records)
        self.samples.take(records)
        for record in records:
            if record.get("event") == START and isinstance(record.get("config"), dict):
                self.config = record["config"]


def _other_tools(run: ListedRun) -> RunSource | None:
    """Return what reads a run of another tool; None for a folder of ours."""
    if run.source is not None or os.path.lexists(run.path / MANIFEST):
        return run.source
    # Records without our manifest may be another program's.
    try:
        found = find_sources(run.path).runs
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def _diagnosis(run: ListedRun, on_work: OnWork) -> Diagnosis:
    def on_records(records: int) -> None:
        on_work(f"{run.name}: {records:,} records")

    with _as_unreadable(run.path):
        if run.source is None:
            return diagnose(run.path, on_records=on_records)
        return diagnose_records(run.name, run.path, records_of(run.source), on_records=on_records)


@contextmanager
def _as_unreadable(path: Path) -> Iterator[None]:
    """Raise what prevents reading as an `UnreadableRunError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableRunError(f"{error.filename or path} does not exist") from error
    except OSError as error:
        raise UnreadableRunError(f"{path}: {error.strerror or error}") from error
    except NoRecordsError as error:
        raise UnreadableRunError(f"{path}: {error}") from error


def _duration(run: ListedRun, ledger: Ledger | None) -> float | None:
    if ledger is not None and ledger.wall_s > 0:
        return ledger.wall_s
    if run.started is None or run.last_sign is None:
        return None
    seconds = run.last_sign - run.started
    return seconds if seconds >= 0 and math.isfinite(seconds) else None


def write_report(target: Path, text: str) -> str | None:
    """Write a report; return why it could not be written."""
    if target.is_dir():
        return f"cannot write {target}: it is a folder"
    try:
        replace_file(target, text.encode("utf-8", "replace"))
    except OSError as error:
        return f"cannot write {target}: {error.strerror or error}"
    return None


def written_text(target: Path) -> str:
    """Return the line that says where a report is."""
    return printable(f"{target}: {size_text(target.stat().st_size)}, opens in any browser without a network")
