"""The runs below folders, ours and those of other tools: what `ls` and `compare` know about each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolkit.cli.chosen_run import find_run, no_run_in, written_at
from toolkit.core.guard import Guard
from toolkit.importers.detect import Sources, find_sources
from toolkit.importers.formats.record_file import OURS, source_of_folder
from toolkit.importers.source import RunSource, flattened, read_all
from toolkit.importers.summary import number, plain
from toolkit.privacy.masking import mask_secrets
from toolkit.runfolder.journal.end_record import with_end_record
from toolkit.runfolder.key_values import KeyValues, Scalar, config_of, key_values_in, settings_from
from toolkit.runfolder.labels import Labels, LabelsError, read_labels
from toolkit.runfolder.layout import MANIFEST, METRICS_JSONL, TRASH
from toolkit.runfolder.manifest import Evaluation, Manifest, ManifestError, read_manifest
from toolkit.runfolder.parts import another_programs_file, part_in
from toolkit.runfolder.reader import last_step, read_from
from toolkit.runfolder.records import START, Record
from toolkit.runfolder.status import work_out_status
from toolkit.runs.labels import Label, RunName, labels_of
from toolkit.runs.loss import known_values, last_values, loss_name
from toolkit.runs.summary import RunSummary

UNREADABLE: Final = "unreadable"
NO_END: Final = "no end"
"""Another tool's run that wrote no end: it may be finished, killed, or still running."""

_HEAD_BYTES: Final = 1024 * 1024
_MAX_RUNS: Final = 100_000
_MOST_CONFIG: Final = 5_000


@dataclass(slots=True, kw_only=True)
class ListedRun:
    """One run in a list."""

    name: str
    path: Path
    format: str
    id: str | None = None
    status: str = UNREADABLE
    why: str | None = None
    step: int | None = None
    last: dict[str, float] = field(default_factory=dict)
    """The last value of each metric that is known without reading all records; of other tools' runs, of every one."""
    started: float | None = None
    last_sign: float | None = None
    project: str | None = None
    tags: tuple[str, ...] = ()
    deleted: bool = False
    problem: str | None = None
    """Why it cannot be read, or not all of it."""
    source: RunSource | None = None
    """Another tool's run."""
    chosen_loss: str | None = None
    """Which metric is the training loss, if more than its name says so."""
    label: Label | None = None
    _has_tail: bool = False
    _config: dict[str, Any] | None = None
    _key_values: KeyValues | None = None

    @property
    def settings(self) -> Mapping[str, Scalar]:
        """The configuration by usual names, such as `learning_rate`."""
        return self._known().config or {}

    @property
    def evaluations(self) -> Mapping[str, Evaluation]:
        """The last and the best value of each metric that evaluates the model."""
        return self._known().evaluations

    def _known(self) -> KeyValues:
        if self._key_values is None:
            self._key_values = KeyValues()
            if self.source is not None:
                self._key_values.config = settings_from({}, _without_secrets(self.source.info.config))
            else:
                # An older run: its run.json does not have them.
                with suppress(OSError):
                    self._key_values = key_values_in(self.path / METRICS_JSONL)
        return self._key_values

    @property
    def loss_name(self) -> str | None:
        """The metric that is the training loss."""
        return self.chosen_loss or loss_name(self.last)

    @property
    def loss(self) -> float | None:
        """The last training loss."""
        return None if self.loss_name is None else self.last[self.loss_name]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration in one level, with joined names; it is read when it is needed."""
        if self._config is None:
            found = self.source.info.config if self.source is not None else _config_of(self.path)
            self._config = dict(list(_leaves(_without_secrets(found)))[:_MOST_CONFIG])
        return self._config

    @property
    def called(self) -> str:
        """What it is called among the runs that it is listed with."""
        return self.name if self.label is None else self.label.text

    def last_value(self, name: str) -> float | None:
        """Return the last value of a metric; of one that run.json does not have, from the end of the records."""
        if name not in self.last and self.source is None and not self._has_tail:
            self._has_tail = True
            with suppress(OSError):
                self.last = {**last_values(self.path / METRICS_JSONL), **self.last}
        return self.last.get(name)

    def age(self, now: float) -> float | None:
        """Return how long ago it last wrote something."""
        return None if self.last_sign is None else now - self.last_sign

    def as_json(self, now: float) -> dict[str, Any]:
        """Return what `ls --json` prints."""
        loss, age = self.loss, self.age(now)
        return {
            "name": self.name,
            "label": self.called,
            "path": os.fspath(self.path),
            "format": self.format,
            "id": self.id,
            "status": self.status,
            "why": self.why,
            "step": self.step,
            "loss": None if loss is None else number(loss),
            "loss_metric": self.loss_name,
            "started": self.started,
            "last_sign": self.last_sign,
            "age_s": None if age is None else round(age, 3),
            "project": self.project,
            "tags": list(self.tags),
            "deleted": self.deleted,
            "problem": self.problem,
        }


@dataclass(slots=True)
class RunList:
    """The runs below some folders, and what could not be looked at."""

    runs: list[ListedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Sentences about paths that do not exist or have no run."""


def label_runs(runs: Sequence[ListedRun]) -> None:
    """Give each of `runs` a label that no other of them has."""
    names = [
        RunName(run.name, os.path.abspath(run.path), run.id or "", lambda run=run: run.settings)  # type: ignore[misc]
        for run in runs
    ]
    for run, label in zip(runs, labels_of(names), strict=True):
        run.label = label


OnRun = Callable[[str, int, int], None]
"""Called with the name of a run before it is read, its number, and how many there are."""


def list_runs(
    paths: Sequence[Path],
    *,
    only: str | None = None,
    deleted: bool = False,
    on_run: OnRun = lambda _name, _done, _total: None,
) -> RunList:
    """Return the runs at `paths`, each a run, a file of another tool, or a folder of runs.

    `only` is the name of a format. Links below a path are not followed, and nothing is changed.
    """
    found = RunList()
    for path in paths:
        before, hidden = len(found.runs), 0
        if only in (None, OURS):
            folders = list(_our_folders(path, deleted=deleted))
            for at, (folder, is_deleted) in enumerate(folders):
                on_run(folder.name, at, len(folders))
                found.runs.append(our_run(folder, deleted=is_deleted))
        if only != OURS:
            hidden = _add_foreign(found, path, only, deleted, on_run)
        if len(found.runs) == before:
            found.missing.append(
                no_run_in(path, deleted=hidden)
                if only is None or hidden
                else f"no run in the format {only} found in {path}"
            )
    label_runs(found.runs)
    return found


def run_at(path: Path) -> ListedRun | str:
    """Return the run at `path`: ours, the newest of ours below it, or the only one of another tool; else a reason."""
    folder = find_run(path)
    if folder is not None:
        return our_run(folder)
    found = list_runs([path])
    if len(found.runs) == 1:
        return found.runs[0]
    if not found.runs:
        return "; ".join([*found.missing, *found.notes])
    names = ", ".join(run.called for run in found.runs[:5])
    return (
        f"{path} has {len(found.runs)} runs ({names}{' …' if len(found.runs) > 5 else ''}); name one of them"
    )


def sources_at(path: Path, only: str | None) -> Sources | str:
    """Return the runs of other tools at `path`, or why there is none."""
    try:
        found = find_sources(path, only=only)
    except OSError:
        return no_run_in(path)
    return found if found.runs else no_run_in(path, found.notes)


def source_for(run: ListedRun) -> RunSource:
    """Return what reads a run of the list."""
    return run.source if run.source is not None else source_of_folder(run.path)


# ------------------------------------------------------------ ours


def our_run(folder: Path, *, deleted: bool = False) -> ListedRun:
    """Return a run folder of ours; one that cannot be read has a problem."""
    shown = Path(os.path.abspath(folder)).name
    run = ListedRun(name=shown, path=folder, format=OURS, deleted=deleted, last_sign=written_at(folder))
    try:
        manifest = with_end_record(read_manifest(folder), folder)
    except FileNotFoundError:
        run.problem = f"it has no {MANIFEST}; `telemetry repair` recovers what it can"
    except (OSError, ManifestError) as error:
        run.problem = f"{MANIFEST}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    else:
        _take_manifest(run, manifest)
        _take_labels(run, manifest)
    records = folder / METRICS_JSONL
    try:
        if run.step is None:
            run.step = last_step(records)
        if loss_name(run.last) is None:
            run.last = {**last_values(records), **run.last}
    except FileNotFoundError:
        run.problem = run.problem or f"it has no {METRICS_JSONL}"
    except OSError as error:
        run.problem = run.problem or f"{METRICS_JSONL}: {error.strerror or error}"
    return run


def _take_manifest(run: ListedRun, manifest: Manifest) -> None:
    status = work_out_status(manifest, time.time())
    run.id, run.status, run.why = manifest.run_id, status.name, status.why
    run.started, run.project, run.tags = manifest.created, manifest.project, manifest.tags
    session, beat = manifest.latest, manifest.heartbeat
    signs = [
        sign for sign in (beat and beat.time, session and session.ended, session and session.started) if sign
    ]
    run.last_sign = max(signs, default=run.last_sign)
    run.step = beat.global_step if beat is not None else None
    if manifest.config is not None:
        run._key_values = KeyValues(manifest.config, manifest.evaluations)  # noqa: SLF001
    run.last = known_values(manifest.summary, manifest.evaluations)


def _take_labels(run: ListedRun, manifest: Manifest) -> None:
    try:
        labels = read_labels(run.path)
    except LabelsError:
        labels = Labels()
    run.tags = labels.tags if labels.tags is not None else run.tags
    run.name = labels.display_name or (
        manifest.display_name if manifest.display_name != manifest.name else run.name
    )


def run_folders(path: Path) -> list[Path]:
    """Return the run folders of ours at `path` and one level below."""
    return [folder for folder, _ in _our_folders(path, deleted=False)]


def _our_folders(path: Path, *, deleted: bool) -> Iterator[tuple[Path, bool]]:
    """Yield the run folders at `path` and one level below, and whether each is in the trash; parts are left out."""
    if _is_ours(path):
        if part_in(path) is None:
            yield path, False
        return
    for folder in _folders_in(path):
        if _is_ours(folder) and part_in(folder) is None:
            yield folder, False
    for place in _folders_in(path / TRASH, hidden=True) if deleted else ():
        for folder in _folders_in(place):
            if _is_ours(folder):
                yield folder, True


def _folders_in(path: Path, *, hidden: bool = False) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and (hidden or not entry.name.startswith("."))
            ]
    except OSError:
        return []
    return [path / name for name in sorted(names)[:_MAX_RUNS]]


def _is_ours(folder: Path) -> bool:
    """Return whether a folder has our manifest; records alone may be another program's."""
    return os.path.lexists(folder / MANIFEST) and another_programs_file(folder) is None


def _config_of(folder: Path) -> Mapping[str, Any]:
    """Return the configuration in the first start records: what the caller gave, and the fields derived from it."""
    try:
        records = read_from(folder / METRICS_JSONL, max_bytes=_HEAD_BYTES).records
    except OSError:
        return {}
    start: Record = {}
    for record in records:
        if record.get("event") == START:
            start = {**start, **record}
    return config_of(start)


def _without_secrets(value: Any) -> Any:
    """Return what another program, or an older version of this one, wrote into a log, to be shown."""
    return mask_secrets(plain(value))


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a configuration; a list of objects is taken apart too."""
    for name, item in flattened(value) if value else ():
        if isinstance(item, list) and any(isinstance(inner, dict) for inner in item):
            numbered = {str(at): inner for at, inner in enumerate(item)}
            yield from flattened(numbered, name)
        else:
            yield name, item


# ------------------------------------------------------------ other tools'


def _add_foreign(found: RunList, path: Path, only: str | None, deleted: bool, on_run: OnRun) -> int:
    """Add the runs of other tools at `path`; return how many are left out, because their tool deleted them."""
    try:
        sources = find_sources(path, only=only)
    except OSError:
        return 0
    ours = [os.fspath(run.path) + os.sep for run in found.runs]
    found.notes += sources.notes
    guard = Guard()
    for at, source in enumerate(sources.runs):
        place = _place_of(source)
        if (source.info.deleted and not deleted) or os.fspath(place).startswith(tuple(ours)):
            continue
        on_run(source.info.name, at, len(sources.runs))
        run = ListedRun(
            name=source.info.name,
            path=place,
            format=source.info.format,
            project=source.info.group or None,
            deleted=source.info.deleted,
            source=source,
        )
        if guard.call(f"reading {source.info.format} logs", _read_foreign, run, source) is None:
            run.problem = f"it could not be read: {', '.join(guard.counts)}"
        # Some tools write the name of a run into its records.
        run.name, tags = _without_secrets((source.info.name, source.info.tags))
        run.tags = tuple(tags)
        run.id = source.info.run_id or source.info.source_id
        found.runs.append(run)
    return 0 if deleted else sum(source.info.deleted for source in sources.runs)


def _place_of(source: RunSource) -> Path:
    pieces = source.info.pieces
    return source.info.root / pieces[0].path if pieces else source.info.root


def _read_foreign(run: ListedRun, source: RunSource) -> bool:
    summary = RunSummary()
    for batch in read_all(source):
        if batch.replaced:
            summary = RunSummary()
        summary.take(batch, [piece.prefix for piece in source.info.pieces])
        if batch.passed_over:
            reason, count = batch.passed_over.most_common(1)[0]
            run.problem = f"not read: {count:,} {reason[1]}"
    run.step, run.last, run.chosen_loss = summary.step, summary.last, summary.loss_name
    run._key_values = summary.key_values  # noqa: SLF001
    summary.key_values.config = settings_from({}, _without_secrets(source.info.config))
    status = source.status(time.time())
    run.status = NO_END if status.state == "unknown" else status.state
    # A copied file is younger than what is in it.
    run.started, run.last_sign = summary.first_time, summary.last_time
    if run.last_sign is None and not math.isnan(status.last_sign):
        run.last_sign = status.last_sign
    return True
