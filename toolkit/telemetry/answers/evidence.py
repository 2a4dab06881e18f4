"""Everything that a run recorded, session by session, for answers: also the steps that were abandoned."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.diagnostics.metric_aliases import LOSS, signal_of
from toolkit.telemetry.importers.as_records import records_in
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.importers.source import RunSource, read_all
from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.folder_list import another_programs_file
from toolkit.telemetry.runfolder.key_values import configured, settings_from
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.metrics import NOT_METRICS, as_float, is_evaluation
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import (
    CHECKPOINT,
    CONTROL_CHANGE,
    END,
    ENVIRONMENT,
    EPOCH,
    ERROR,
    EVAL,
    LOST,
    NON_FINITE,
    START,
    STEP,
    TAGS,
    Record,
)

# No set: an event of a file may be a list.
_EVENTS: Final = (CHECKPOINT, CONTROL_CHANGE, END, ERROR, LOST, TAGS, "state", "code")


@dataclass(slots=True)
class Column:
    """The numbers of one metric and the steps of their records, as they were written."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class SessionEvidence:
    """What one session wrote, in the order of writing."""

    number: int
    start: Record = field(default_factory=dict)
    """Its start record, with what came later of the environment; empty where there is none."""
    steps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, Column] = field(default_factory=dict)
    """Of the results, the learning rate and the epoch: what else steps have, such as times, decides nothing."""
    evals: list[Record] = field(default_factory=list)
    """Records of evaluations and epochs."""
    events: list[Record] = field(default_factory=list)
    """Records of checkpoints, state, code, control changes, errors, losses of records, tags and the end."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The configuration in one level, by usual names."""
    _kept: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """Of records with these fields, those that are kept."""

    def events_of(self, kind: str) -> list[Record]:
        """Return the events of one kind."""
        return [record for record in self.events if record.get("event") == kind]

    def values_of(self, signal: str) -> dict[int, float]:
        """Return the values of a signal (`LOSS`, `LR`, … of metric_aliases) by step, of a step written twice the last.

        Of several metrics that are this signal, it is the one with most values.
        """
        names = [name for name in self.columns if signal_of(name) == signal]
        return self.column(max(names, key=lambda name: len(self.columns[name].steps), default=""))

    def column(self, name: str) -> dict[int, float]:
        """Return the values of a metric by step, as `values_of` does."""
        found = self.columns.get(name, Column())
        return dict(zip(found.steps, found.values, strict=True))

    def add(self, record: Record) -> None:
        """Take a step record."""
        step = record["global_step"]
        self.steps.append(step)
        # Most records have the same fields: which of them are kept is looked up once for all.
        names = tuple(record)
        kept = self._kept.get(names)
        if kept is None:
            kept = self._kept[names] = [name for name in names if _decides(name)]
        for name in kept:
            value = record[name]
            if type(value) is float or type(value) is int:
                column = self.columns.get(name) or self.columns.setdefault(name, Column())
                column.steps.append(step)
                column.values.append(value if type(value) is float else as_float(value))


def _decides(name: str) -> bool:
    """Return whether a metric is a result of training, its learning rate or its epoch."""
    is_result = signal_of(name) is not None or is_evaluation(name) or "loss" in name.lower()
    return name == "epoch" or (is_result and name not in NOT_METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """What is known about one run; what its tool does not record is empty."""

    name: str
    path: Path
    format: str
    """`telemetry` for a run folder of ours, else the name of the importers' format."""
    sessions: Sequence[SessionEvidence]
    """In the order of writing, the first one first; without a record there is none."""
    problem: str | None = None
    """Why the run could not be read, or not to its end."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a run folder of ours, with batches, code and state where they were recorded."""
        return self.format == OURS

    @property
    def settings(self) -> Mapping[str, Any]:
        """The configuration of the newest session."""
        return self.sessions[-1].settings if self.sessions else {}


def read_evidence(place: Path | RunSource) -> RunEvidence:
    """Return what a run recorded: of a run folder of ours, or of another tool's log. Never raises on what is there."""
    if not isinstance(place, (str, Path)):
        return _of_source(place)
    path = Path(os.path.abspath(place))
    if os.path.isfile(path / METRICS_JSONL) and another_programs_file(path) is None:
        return _collected(path.name, path, OURS, records_of(path / METRICS_JSONL))
    try:
        found = find_sources(path)
    except (OSError, ValueError) as error:
        return _unread(path, f"{place} cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(found.runs) == 1:
        return _of_source(found.runs[0])
    reason = f"{len(found.runs)} runs are there; name one of them" if found.runs else "no run is there"
    return _unread(path, f"{place} is not one run: {reason}")


def _unread(path: Path, problem: str) -> RunEvidence:
    return RunEvidence(name=path.name, path=path, format="", sessions=(), problem=problem)


def _of_source(source: RunSource) -> RunEvidence:
    info = source.info
    if info.format == OURS:
        return read_evidence(info.root)
    records = (record for batch in read_all(source) for record in records_in(info, batch))
    found = _collected(info.name, info.root, info.format, _in_passes(records))
    settings = settings_from({}, info.config)
    for session in found.sessions:
        session.settings = settings
    return found


def _in_passes(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of another tool; a loss of a step before the last one begins a session, as a new file does.

    Records without a time come in the order of their steps: there the second loss of a step is of the next session.
    What has no loss, such as an evaluation, says nothing about sessions: it often has a record of its own.
    """
    in_order = list(records)
    copies = Counter((one["session"], one["global_step"]) for one in in_order if _is_loss(one, timed=False))
    last: dict[Any, int] = {}
    numbers: dict[Any, int] = {}
    met: Counter[Any] = Counter()
    for record in in_order:
        session, back = record["session"], 0
        if session not in numbers:
            numbers[session] = max(numbers.values(), default=0) + 1
        if _is_loss(record):
            step = record["global_step"]
            before, last[session] = last.get(session, step), step
            numbers[session] += step < before
            place = (session, step)
            if copies[place] > 1:
                met[place] += 1
                if met[place] == 1 and copies[session, before] < 2:
                    numbers[session] += copies[place] - 1
                back = copies[place] - met[place]
        yield {**record, "session": numbers[session] - back}


def _is_loss(record: Record, *, timed: bool = True) -> bool:
    """Return whether it is a step with a loss; with `timed=False`, one without a time."""
    is_step = record.get("event") == STEP and type(record.get("global_step")) is int
    return is_step and (timed or "time" not in record) and any(signal_of(name) == LOSS for name in record)


def _collected(name: str, path: Path, format_name: str, records: Iterable[Record]) -> RunEvidence:
    sessions: dict[int, SessionEvidence] = {}
    problem, number = None, 1
    try:
        for record in records:
            given, event = record.get("session"), record.get("event")
            if given != number and type(given) is int and given > 0:
                number = given
            session = sessions.get(number)
            if session is None:
                session = sessions[number] = SessionEvidence(number)
            if event == STEP and type(record.get("global_step")) is int:
                session.add(with_non_finite(record) if NON_FINITE in record else record)
            elif event in (START, ENVIRONMENT):
                # What a start could not wait for comes in another record; what was said first stays.
                session.start = {**record, **session.start}
                session.settings = configured(session.start)
            elif event in (EVAL, EPOCH):
                session.evals.append(with_non_finite(record))
            elif event in _EVENTS:
                session.events.append(with_non_finite(record))
    except OSError as error:
        problem = f"{path} could not be read to its end: {error.strerror or error}"
    in_order = tuple(sessions[number] for number in sorted(sessions))
    return RunEvidence(name=name, path=path, format=format_name, sessions=in_order, problem=problem)
